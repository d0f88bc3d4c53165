"""The main job on real weights: a good canary promoted, a broken one refused, a damaged one rolled back.

Run by `make demo`, and with `--soak` by `make soak`: a good canary promoted by the daemon alone.
Exits with 1 when anything was not as told.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.demo.clients import Clients
from tests.support.demo_weights import ensure_demo_weights
from tests.support.house import BIN, House, wait_until
from tests.support.local_hub import LocalHub

REPO = "demo/SmolLM2-135M-Instruct-GGUF"
FILE = "SmolLM2-135M-Instruct.gguf"
CLIENTS = 3
SHARE = 20
ENOUGH = 40
"""Canary requests to wait for before the good one is promoted."""

SETTINGS: dict[str, Any] = {
    # Every engine here shares the same two cores, so that each slows the other: speed says little about the weights.
    "canary": {"every": "2s", "min_age": "1m", "limits": {"ttft": 4.0, "speed": 0.25}},
    "weights": {"min_free": "512MiB"},
}


class UnexpectedError(Exception):
    """Something was not as told."""


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(house: House, *words: str, expected: int = 0) -> None:
    """Shows a command and what it prints. Raises UnexpectedError when it exits with another status."""
    print(f"$ llmgw ctl {' '.join(words)}", flush=True)
    status = subprocess.run([BIN / "llmgw", "ctl", *words], env=house.env, cwd=house.root).returncode
    print(f"(exit status {status})", flush=True)
    expect(status == expected, f"exit status {status} where {expected} was told")


def expect(told: bool, otherwise: str) -> None:
    if not told:
        raise UnexpectedError(otherwise)


def good(house: House, clients: Clients, weights: Path) -> str:
    say("Newer weights that are good: a canary, compared, then promoted")
    sha = house.hub.commit(REPO, {FILE: weights}, message="better quantisation")
    run(house, "model", "canary", "chat", "--percent", str(SHARE))
    wait_until(lambda: requests_of_canary(house) >= ENOUGH, 300, f"{ENOUGH} canary requests")
    run(house, "model", "canaries")
    run(house, "model", "promote", "chat")
    expect(house.model()["origin"]["revision"] == sha, "the model is not on the good weights")
    expect(house.canary() is None, "there still is a canary after the promotion")
    return share_given(house, "good", "promoted")


def soak(house: House, weights: Path) -> str:
    say("Newer weights that are good, and nobody there: the daemon promotes them by itself")
    sha = house.hub.commit(REPO, {FILE: weights}, message="better quantisation")
    run(house, "model", "canary", "chat", "--percent", "50", "--auto-promote", "--until-verdict")
    run(house, "model", "canaries", "--ended")
    ended = house.json("model", "canaries", "chat", "--ended")[0]
    expect(house.model()["origin"]["revision"] == sha, "the model is not on the good weights")
    expect(ended["reason"] == "promoted by llmgw", f"the canary ended otherwise: {ended['reason']}")
    requests = sum(ended["canary"]["outcomes"].values())
    return f"good promoted by llmgw after {requests} canary requests"


def broken(house: House, clients: Clients, weights: Path) -> None:
    say("Newer weights that are cut in half: the canary fails at placement and leaves nothing")
    before = house.model()
    house.hub.commit(REPO, {FILE: weights}, message="broken upload")
    run(house, "model", "canary", "chat", "--percent", str(SHARE), expected=1)
    job = house.json("jobs", "list")[0]
    failed = [step["name"] for step in job["steps"] if step["state"] == "failed"]
    expect(failed == ["placement"], f"the job failed at {failed}, not at placement")
    expect(house.canary() is None, "the broken canary is still there")
    after = house.model()
    expect(after["origin"] == before["origin"], "the model has moved")
    expect(len(after["replicas"]) == 1, f"{len(after['replicas'])} replicas are left")


def damaged(house: House, clients: Clients, weights: Path, good_sha: str) -> str:
    say("Newer weights that answer gibberish without an end: the watch loop takes the canary out by itself")
    house.hub.commit(REPO, {FILE: weights}, message="damaged weights")
    run(house, "model", "canary", "chat", "--percent", str(SHARE), "--until-verdict", expected=5)
    run(house, "model", "canaries", "--ended")
    expect(house.model()["origin"]["revision"] == good_sha, "the model is not on the good weights any more")
    say("A nightly script that asks for the same weights again is refused")
    run(house, "model", "canary", "chat", expected=3)
    return share_given(house, "damaged", "rolled_back")


def requests_of_canary(house: House) -> int:
    canary = house.canary()
    return canary["canary"]["requests"] if canary else 0


def share_given(house: House, name: str, phase: str) -> str:
    """The share that the last canary really got. Raises UnexpectedError when it is more than a request off."""
    canary = house.json("model", "canaries", "chat", "--ended")[0]
    expect(canary["phase"] == phase, f"the {name} canary is {canary['phase']}, not {phase}")
    counts = {arm: sum(canary[arm]["outcomes"].values()) for arm in ("stable", "canary")}
    total = sum(counts.values())
    # The split is exact in the order of arrival; what was still being answered at the end is not counted yet.
    off = abs(counts["canary"] - SHARE / 100 * total)
    expect(off <= 1 + CLIENTS, f"the {name} canary got {counts['canary']} of {total} requests: {off:.1f} off")
    return f"{name} {canary['share_real']:.1f} % ({counts['canary']} of {total}; {SHARE} % wanted)"


def main(soaks: bool) -> int:
    say("Making the weights (once)")
    weights = ensure_demo_weights()
    with tempfile.TemporaryDirectory(prefix="llmgw-demo-") as folder, LocalHub(Path(folder) / "hub") as hub:
        house = House(Path(folder), hub, SETTINGS)
        hub.commit(REPO, {FILE: weights.base}, message="first weights")
        say("A daemon, and a model from the repository")
        house.start()
        clients = Clients(house.gateway, "chat", CLIENTS)
        problem, shares = "", ["good –", "damaged –"]
        try:
            run(house, "model", "add", "chat", "--repo", REPO, "--engine-arg=--threads=1")
            say(f"{CLIENTS} clients ask questions from now on")
            clients.start()
            if soaks:
                shares = [soak(house, weights.good)]
            else:
                shares[0] = good(house, clients, weights.good)
                good_sha = house.model()["origin"]["revision"]
                broken(house, clients, weights.broken)
                shares[1] = damaged(house, clients, weights.damaged, good_sha)
            clients.stop()
            say("What happened, who did it, and why")
            run(house, "events")
            run(house, "status")
        except (UnexpectedError, AssertionError, json.JSONDecodeError) as error:
            problem = str(error)
        finally:
            clients.stop()
            house.stop()
        for line in dict.fromkeys(clients.problems):
            print(f"client: {line}", file=sys.stderr)
        if problem:
            print(f"not as told: {problem}\n--- daemon's log\n{house.log.read_text()}", file=sys.stderr)
    print(f"\ndemo: {clients.answered} requests, {clients.failed} failed, {', '.join(shares)}", flush=True)
    return 1 if problem or clients.failed or not clients.answered else 0


if __name__ == "__main__":
    sys.exit(main(soaks="--soak" in sys.argv[1:]))
