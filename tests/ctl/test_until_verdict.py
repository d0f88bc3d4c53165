"""`--until-verdict` waits for a canary's end and exits by it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import CanaryPhase, JobState, VerdictState
from llmgwd.protocol.views import CanaryView, JobView, VerdictView
from tests.ctl.house import CANARY, CANARY_ID, PENDING_JOB, course, ended, finished, followed, well
from tests.ctl.program import Running, llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Vanish, Word

UNDECIDED = VerdictView(VerdictState.UNDECIDED, "undecided after 864 canary requests")
ENDS = [
    (CanaryPhase.PROMOTED, ExitStatus.DONE, "was promoted"),
    (CanaryPhase.ROLLED_BACK, ExitStatus.ROLLED_BACK, "was rolled back"),
    (CanaryPhase.ABORTED, ExitStatus.REFUSED, "was aborted"),
    (CanaryPhase.FAILED, ExitStatus.FAILED, "failed"),
]


def ends(phase: CanaryPhase) -> m.Canaries:
    return m.Canaries((finished(phase, "9 of 120 answers were cut short"),))


@pytest.mark.parametrize(("phase", "status", "words"), ENDS, ids=[phase for phase, _, _ in ENDS])
def test_each_end_has_its_status(socket_path: Path, phase: CanaryPhase, status: ExitStatus, words: str) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchCanary):
            yield m.CanaryChanged(msgspec.structs.replace(CANARY, verdict=UNDECIDED))
            yield ends(phase)
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script) as daemon:
        told = llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
        as_json = llmgw("ctl", "model", "canary", "chat", "--until-verdict", "--json", socket=socket_path)
    assert told.status == as_json.status == status
    assert f"chat-canary {words}: 9 of 120 answers" in (told.stdout if status == 0 else told.stderr)
    assert "chat-canary: serving at 10 %, undecided: after 864 canary requests" in told.stderr
    assert msgspec.json.decode(as_json.stdout, type=CanaryView).phase is phase
    assert m.WatchCanary(CANARY_ID) in daemon.requests


@pytest.mark.parametrize(
    ("state", "outcome", "status"),
    [(JobState.DONE, "nothing newer than 5f3a9c1", 0), (JobState.CANCELLED, "cancelled by ops", 3)],
    ids=["nothing newer", "aborted"],
)
def test_a_job_that_ends_before_it_made_a_canary(socket_path: Path, state: JobState, outcome: str, status: int) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchJob):
            yield m.Jobs((ended(PENDING_JOB, state, outcome),))
        elif isinstance(request, m.WatchCanary):
            yield m.Failure("no_such_canary", f"there is no canary {request.id}", status=ExitStatus.UNKNOWN)
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
        as_json = llmgw("ctl", "model", "canary", "chat", "--until-verdict", "--json", socket=socket_path)
    assert told.status == as_json.status == status
    assert outcome in (told.stdout if status == 0 else told.stderr)
    assert msgspec.json.decode(as_json.stdout, type=JobView).state is state


def test_an_abort_while_it_is_fetched_is_an_abort(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchJob):
            yield m.Jobs((ended(PENDING_JOB, JobState.CANCELLED, "aborted by ops"),))
        elif isinstance(request, m.WatchCanary):
            yield ends(CanaryPhase.ABORTED)
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        assert llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path).status == 3


def test_a_canary_job_that_fails_is_1(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        yield from followed(course(fail_at=4)) if isinstance(request, m.WatchJob) else well()(request)

    with ScriptedDaemon(socket_path, script) as daemon:
        told = llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
    assert told.status == 1
    assert "failed at step placement" in told.stderr
    assert not any(isinstance(request, m.WatchCanary) for request in daemon.requests)


def test_an_interrupt_leaves_the_canary(socket_path: Path) -> None:
    release = threading.Event()

    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchCanary):
            yield m.CanaryChanged(CANARY)
            release.wait(20)
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        running = Running("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
        running.wait_for("undecided")
        told = running.interrupt()
        release.set()
    assert told.status == ExitStatus.INTERRUPTED
    assert CANARY_ID in told.stderr
    assert "llmgw ctl model abort chat" in told.stderr


def test_a_daemon_that_vanishes_is_69(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        yield from iter([Vanish()]) if isinstance(request, m.WatchCanary) else well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
    assert told.status == ExitStatus.NO_DAEMON
