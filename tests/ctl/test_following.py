"""A job followed in pipes: a plain line a change, Ctrl-C, and a daemon that goes away."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import JobState
from tests.ctl.house import CANARY_ID, PENDING_JOB, STEP_NAMES, course, ended, followed, well
from tests.ctl.program import CONTROLS, Running, llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Vanish, Word


def test_each_step_change_is_one_plain_line_on_stderr(daemon: ScriptedDaemon) -> None:
    told = llmgw("ctl", "model", "canary", "chat", socket=daemon.path)
    assert told.status == 0
    assert told.stdout == "chat-canary is given 10 % of chat's requests\n"
    lines = told.stderr.splitlines()
    assert lines[0] == f"canary of chat: {CANARY_ID}"
    changes = [line.partition(",")[0].strip() for line in lines[1:]]
    assert changes == [f"{name}: {state}" for name in STEP_NAMES for state in ("running", "done")]
    assert not CONTROLS.search(told.stderr)


def test_the_request_carries_what_was_asked_for(daemon: ScriptedDaemon) -> None:
    argv = (
        "model canary chat --percent 5 --revision main --quant Q4_K_M --engine-arg=--ctx-size --engine-arg 512 --again"
    )
    llmgw("ctl", *argv.split(), "--detach", socket=daemon.path)
    weights = m.WeightsChoice(revision="main", quant="Q4_K_M")
    assert daemon.requests == [m.StartCanary("chat", 5.0, weights, ("--ctx-size", "512"), again=True)]


@pytest.mark.parametrize("verb", ["add chat --repo a/b", "canary chat", "update chat"])
def test_unsafe_weights_are_allowed_only_when_asked_for(daemon: ScriptedDaemon, verb: str) -> None:
    for argv in (f"model {verb} --detach", f"model {verb} --detach --allow-unsafe"):
        llmgw("ctl", *argv.split(), socket=daemon.path)
    asked = [request for request in daemon.requests if isinstance(request, m.AddModel | m.StartCanary | m.Update)]
    assert [request.weights.allow_unsafe for request in asked] == [False, True]


def test_a_path_is_sent_absolute(daemon: ScriptedDaemon) -> None:
    argv = "model add chat --path here.gguf --alias a --alias b --replicas 2 --description d --detach"
    assert llmgw("ctl", *argv.split(), socket=daemon.path).stdout == f"{CANARY_ID}\n"
    (request,) = daemon.requests
    assert isinstance(request, m.AddModel)
    assert request.weights.path and request.weights.path.startswith("/")
    assert (request.aliases, request.replicas, request.description) == (("a", "b"), 2, "d")


def test_fallbacks_and_adapters_are_sent_as_given(daemon: ScriptedDaemon) -> None:
    adapters = ("a=org/repo", "b=org/repo@v1.0", "c=/srv/c.gguf", "d=./d.gguf")
    options = [word for each in adapters for word in ("--adapter", each)]
    llmgw(
        *("ctl", "model", "add", "chat", "--path", "/x", "--fallback", "one", "--fallback", "two", "--detach"),
        *options,
        socket=daemon.path,
    )
    (request,) = daemon.requests
    assert isinstance(request, m.AddModel)
    assert request.fallbacks == ("one", "two")
    assert request.adapters == (
        m.AdapterChoice("a", "org/repo"),
        m.AdapterChoice("b", "org/repo", "v1.0"),
        m.AdapterChoice("c", path="/srv/c.gguf"),
        m.AdapterChoice("d", path=str(Path("d.gguf").absolute())),
    )


@pytest.mark.parametrize("adapter", ["legal", "=a/b", "legal=", "legal=repo", "legal=a/b/c", "legal=a/b@"])
def test_what_is_no_adapter_is_a_usage_error(daemon: ScriptedDaemon, adapter: str) -> None:
    told = llmgw("ctl", "model", "add", "chat", "--path", "/x", "--adapter", adapter, socket=daemon.path)
    assert told.status == 2
    assert "write NAME=ORG/REPO" in " ".join(told.stderr.split())
    assert daemon.requests == []


def test_quiet_prints_nothing_of_a_success(daemon: ScriptedDaemon) -> None:
    assert llmgw("ctl", "model", "promote", "chat", "-q", socket=daemon.path) == (0, "", "")


@pytest.mark.parametrize("quiet", [[], ["--quiet"]], ids=["loud", "quiet"])
def test_a_failed_job_says_what_where_why_and_what_next(socket_path: Path, quiet: list[str]) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        yield from followed(course(fail_at=2)) if isinstance(request, m.WatchJob) else well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "model", "canary", "chat", *quiet, socket=socket_path)
    assert (told.status, told.stdout) == (1, "")
    assert "canary of chat failed at step checksums: sha256 of chat-q4_k_m.gguf is 77aa" in told.stderr
    assert "chat serves on as it was" in told.stderr
    assert told.stderr.endswith("hint: run it again to fetch the file anew\n")


def test_a_failed_job_decides_the_status(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchJob):
            failed = ended(PENDING_JOB, JobState.FAILED, "9b1c2d3 was rolled back before", "--again tries it anew")
            yield m.Jobs((msgspec.structs.replace(failed, exit_status=ExitStatus.REFUSED),))
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "model", "canary", "chat", socket=socket_path)
    assert told.status == ExitStatus.REFUSED
    assert "canary of chat failed: 9b1c2d3 was rolled back before" in told.stderr


def test_a_cancelled_job_is_1(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchJob):
            yield m.Jobs((ended(PENDING_JOB, JobState.CANCELLED, "by ops"),))
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "jobs", "watch", CANARY_ID, socket=socket_path)
    assert told.status == 1
    assert "canary of chat was cancelled: by ops" in told.stderr


def test_nothing_newer_is_0_and_starts_nothing(socket_path: Path) -> None:
    with ScriptedDaemon(socket_path, lambda request: iter([m.Done("nothing newer than 5f3a9c1")])):
        told = llmgw("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
    assert told == (0, "nothing newer than 5f3a9c1\n", "")


def stays_at_weights(release: threading.Event) -> Iterator[Word]:
    for job in course():
        yield m.JobChanged(job)
        if job.steps[1].progress:
            release.wait(20)
            return


@pytest.mark.parametrize("argv", [["model", "canary", "chat"], ["jobs", "watch", CANARY_ID]], ids=lambda a: a[1])
def test_an_interrupt_leaves_the_job_and_names_it(socket_path: Path, argv: list[str]) -> None:
    release = threading.Event()

    def script(request: m.Request) -> Iterator[Word]:
        yield from stays_at_weights(release) if isinstance(request, m.WatchJob) else well()(request)

    with ScriptedDaemon(socket_path, script) as daemon:
        running = Running("ctl", *argv, socket=socket_path)
        running.wait_for("weights: running")
        told = running.interrupt()
        release.set()
    assert (told.status, told.stdout) == (ExitStatus.INTERRUPTED, "")
    assert f"llmgw ctl jobs watch {CANARY_ID}" in told.stderr
    assert f"llmgw ctl jobs cancel {CANARY_ID}" in told.stderr
    assert not any(isinstance(request, m.CancelJob) for request in daemon.requests)


def test_a_daemon_that_vanishes_meanwhile_is_69_with_the_job(socket_path: Path) -> None:
    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchJob):
            yield from list(followed(course()))[:2]
            yield Vanish()
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        told = llmgw("ctl", "model", "canary", "chat", socket=socket_path)
    assert told.status == ExitStatus.NO_DAEMON
    assert f"llmgwd went away while {CANARY_ID} ran" in told.stderr


def test_control_characters_of_an_engine_do_not_reach_the_screen(socket_path: Path) -> None:
    with ScriptedDaemon(socket_path, lambda request: iter([m.Done("said \x1b[2J\x07 \x9b31m and\nmore")])):
        told = llmgw("ctl", "model", "abort", "chat", socket=socket_path)
    assert not CONTROLS.search(told.stdout)
    assert told.stdout.count("\n") == 1
