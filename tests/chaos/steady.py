"""Every way to move a model or its daemon, one after another, while clients ask at a steady rate: no request fails.

Run by `make steady`, which is 10,000 requests at 50 a second.
"""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.house import House, add_chat, commit, house_on, wait_until
from tests.support.load import Load
from tests.support.toy_engine import Behaviour

CLIENTS = 8
TOKEN_S = 0.002


@contextmanager
def steady_house(root: Path) -> Iterator[House]:
    """Two gateway workers, and the model `chat` on two replicas."""
    with house_on(root, started=False) as house:
        house.settings["gateway"]["workers"] = 2
        house.options = ["--leave-running"]
        house.start()
        try:
            add_chat(house, Behaviour(words="the first words", token_s=TOKEN_S), "--replicas", "2")
            yield house
        finally:
            # Told to leave it all running on SIGTERM; now everything is to end.
            assert house.stop(signal.SIGINT) == 0


def steady(house: House, requests: int, per_s: float, did: Callable[[str], None]) -> Load:
    """Goes through the story again and again until that many were answered; `did` is told each thing done."""
    load = Load(house, CLIENTS, every_s=CLIENTS / per_s)
    load.start()
    turns = 0
    try:
        while not turns or (load.answered < requests and not load.problems):
            turns += 1
            for what in story(house, turns):
                did(f"{what}: {load.answered} answered, {len(load.problems)} not whole")
        wait_until(lambda: load.answered >= requests or load.problems, requests / per_s + 60, "clients are answered")
    finally:
        load.stop()
    return load


def story(house: House, turn: int) -> Iterator[str]:
    """Says what was done, after each; begins and ends with a model without a canary."""
    commit(house, Behaviour(words=f"words to go back from {turn}", token_s=TOKEN_S))
    house.ok("model", "canary", "chat", "--percent", "30")
    yield "canary"
    house.ok("model", "percent", "chat", "60")
    yield "percent"
    house.ok("model", "promote", "chat")
    yield "promote"
    house.ok("model", "rollback", "chat")
    yield "rollback"
    commit(house, Behaviour(words=f"words to be taken out {turn}", token_s=TOKEN_S))
    house.ok("model", "canary", "chat", "--percent", "50")
    yield "canary"
    seen = house.log.read_text().count("configuration reloaded")
    house.reload()
    wait_until(lambda: house.log.read_text().count("configuration reloaded") > seen, what="the reload is done")
    yield "reload"
    for how in (signal.SIGTERM, signal.SIGKILL):
        house.restart(how)
        wait_until(lambda: house.ask()[0] == "canary", what="the canary answers again")
        yield f"restart after {how.name}"
    house.ok("model", "abort", "chat")
    yield "abort"


def main(requests: int, per_s: float) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llmgw-steady-") as folder, steady_house(Path(folder)) as house:
        load = steady(house, requests, per_s, lambda what: print(what, flush=True))
    took_s = time.monotonic() - began
    for problem in load.problems:
        print(f"failed: {problem.what[:300]}")
    rate = load.answered / took_s
    arms = ", ".join(f"{count} by {arm}" for arm, count in sorted(load.arms.items()))
    print(
        f"steady: {load.answered} requests at {rate:.0f}/s ({arms}), {len(load.problems)} failed; "
        f"the slowest whole answer took {load.longest_s:.1f} s"
    )
    return 1 if load.problems or load.answered < requests else 0
