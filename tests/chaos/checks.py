"""What must hold whenever nothing is under way, whatever was killed before."""

import json
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

from llmgw_ctl.client import Connection
from llmgwd import process
from llmgwd.protocol import messages as m
from llmgwd.protocol.states import CanaryPhase
from llmgwd.protocol.views import ModelView, StatusView
from tests.support.house import House

EVENTS = 1_000_000


def broken_promises(house: House, connection: Connection, events_before: list[object]) -> list[str]:
    """What does not hold now; `events_before` is what the event log had at the last look, and is brought up to date."""
    status = connection.ask(m.GetStatus(), m.Status).status
    broken = [f"{job.id} has not ended" for job in status.jobs]
    broken += [
        f"{model.name} has {model.ready} of {model.wanted} replicas ready" for model in status.models if short(model)
    ]
    broken += [f"{each.name} is {each.phase}" for each in status.canaries if each.phase is not CanaryPhase.SERVING]
    broken += _processes(house, status)
    broken += _routes(house, status)
    events: list[object] = list(connection.ask(m.ListEvents(EVENTS), m.Events).events)
    if events[: len(events_before)] != events_before:
        broken.append("the event log was rewritten")
    if [getattr(event, "seq", 0) for event in events] != list(range(1, len(events) + 1)):
        broken.append("the event log has gaps")
    events_before[:] = events
    return broken


def short(model: ModelView) -> bool:
    return not model.ready == len(model.replicas) == model.wanted


def _processes(house: House, status: StatusView) -> list[str]:
    """Exactly those that the catalog asks for, each once."""
    there = Counter(_program(pid) for pid, *_ in process.marked(house.state))
    engines = sum(model.wanted for model in status.models) + len(status.canaries)
    wanted = Counter(engine=engines, worker=house.settings["gateway"]["workers"])
    broken = [] if +there == +wanted else [f"processes are {dict(there)}, wanted are {dict(wanted)}"]
    linked = status.workers == wanted["worker"]
    return broken if linked else [*broken, f"{status.workers} of {wanted['worker']} workers follow the daemon"]


def pids_of(house: House, program: str) -> list[int]:
    """The house's processes of a program: `worker` or `engine`."""
    return [pid for pid, *_ in process.marked(house.state) if _program(pid) == program]


def _program(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    return "worker" if b"gateway.worker" in line else "engine" if b"toy_engine" in line else line.decode()


def _routes(house: House, status: StatusView) -> list[str]:
    """Clients are answered by the weights that the catalog names, on both arms."""
    try:
        with urllib.request.urlopen(f"{house.gateway}/v1/models", timeout=10) as reply:
            listed = {model["id"] for model in json.load(reply)["data"]}
        broken = [] if listed == {each.name for each in status.models} else [f"the gateway lists {sorted(listed)}"]
        canaries = {each.model: each for each in status.canaries}
        for model in status.models:
            broken += _answers(house, model.name, "stable", model.origin.revision)
            if model.name in canaries:
                broken += _answers(house, model.name, "canary", canaries[model.name].origin.revision)
    except (OSError, urllib.error.URLError) as error:
        return [f"the gateway does not answer: {error}"]
    return broken


def _answers(house: House, model: str, arm: str, revision: str | None) -> list[str]:
    came_from, reply = house.ask(model, {"x-llmgw-arm": arm})
    said = reply["choices"][0]["message"]["content"]
    (weights,) = (house.state / "weights").glob(f"*/{revision}/chat.gguf")
    wanted = json.loads(weights.read_text())["words"]
    return [] if (came_from, said) == (arm, wanted) else [f"{model} on {arm} says {said!r}, its weights say {wanted!r}"]
