"""What `llmgw` exits with, and that the words for people go to stderr."""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_ctl.client import _no_connection
from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from tests.ctl.program import PROGRAM, ROOT, environment, llmgw
from tests.ctl.scripted_daemon import HangUp, ScriptedDaemon, Word


def test_done_is_0_and_the_result_is_on_stdout(daemon: ScriptedDaemon) -> None:
    ended = llmgw("ctl", "model", "percent", "chat", "25", socket=daemon.path)
    assert ended == (0, "chat-canary is given 25 % of chat's requests\n", "")
    assert daemon.requests == [m.SetPercent("chat", 25.0)]


@pytest.mark.parametrize(
    "status", [ExitStatus.FAILED, ExitStatus.USAGE, ExitStatus.REFUSED, ExitStatus.UNKNOWN, ExitStatus.NOT_PERMITTED]
)
def test_a_failure_decides_the_status(socket_path: Path, status: ExitStatus) -> None:
    def refuse(request: m.Request) -> Iterator[Word]:
        yield m.Failure("some_code", "chat has no canary to promote", "start one", status)

    with ScriptedDaemon(socket_path, refuse):
        ended = llmgw("ctl", "model", "promote", "chat", socket=socket_path)
    assert ended == (status, "", "error: chat has no canary to promote\nhint: start one\n")


@pytest.mark.parametrize("share", ["101", "-5", "nan", "100.5"])
def test_a_share_outside_0_to_100_is_2_and_says_so(daemon: ScriptedDaemon, share: str) -> None:
    for argv in (["percent", "chat", share], ["canary", "chat", f"--percent={share}"]):
        ended = llmgw("ctl", "model", *argv, socket=daemon.path)
        assert ended.status == ExitStatus.USAGE
        assert f"a share is a percentage from 0 to 100, not {share}" in ended.stderr
        assert ended.stdout == ""
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["ctl", "model", "percent", "chat", "lots"], "a valid number"),
        (["ctl", "model", "nonsense"], "nonsense"),
        (["ctl", "model", "show"], "NAME"),
        (["ctl", "model", "add", "chat"], "--repo or --path"),
        (["ctl", "model", "add", "chat", "--path", "/w", "--quant", "Q4"], "--quant"),
        (["ctl", "model", "update", "chat", "--path", "/w", "--allow-unsafe"], "--allow-unsafe"),
        (["ctl", "model", "add", "chat", "--repo", "a/b", "--replicas", "0"], "at least 1"),
        (["ctl", "model", "canary", "chat", "--detach", "--until-verdict"], "one of them"),
        (["ctl", "model", "canary", "chat", "--hold", "10x"], "no duration"),
        (["ctl", "model", "canary", "chat", "--on-deadline", "abort"], "needs a --deadline"),
        (["ctl", "model", "canary", "chat", "--deadline", "0s"], "longer than nothing"),
        (["ctl", "model", "canary", "chat", "--limit", "ttft=1.1", "--limit", "ttft=2"], "given twice"),
        (["ctl", "model", "remove", "chat"], "--yes"),
        (["ctl", "model", "logs", "chat", "-f", "--json"], "--follow"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors_are_2_and_reach_no_daemon(daemon: ScriptedDaemon, argv: list[str], words: str) -> None:
    ended = llmgw(*argv, socket=daemon.path)
    assert (ended.status, ended.stdout) == (ExitStatus.USAGE, "")
    assert words in ended.stderr
    assert daemon.requests == []


def test_no_daemon_is_69_and_names_the_socket_and_the_way_on(socket_path: Path) -> None:
    ended = llmgw("--socket", str(socket_path), "ctl", "status")
    assert ended.status == ExitStatus.NO_DAEMON
    assert str(socket_path) in ended.stderr
    assert "llmgwd --config server.yaml" in ended.stderr


def test_a_socket_nobody_listens_on_is_69(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(socket_path))
    ended = llmgw("ctl", "status", socket=socket_path)
    assert ended.status == ExitStatus.NO_DAEMON
    assert "nobody listens there" in ended.stderr


def test_a_daemon_that_hangs_up_is_69(socket_path: Path) -> None:
    with ScriptedDaemon(socket_path, lambda request: iter([HangUp()])):
        ended = llmgw("ctl", "model", "list", socket=socket_path)
    assert ended.status == ExitStatus.NO_DAEMON
    assert "went away" in ended.stderr


def test_a_socket_that_may_not_be_used_is_77() -> None:
    refused = _no_connection(Path("/run/llmgw/llmgwd.sock"), PermissionError(13, "Permission denied"))
    assert refused.status is ExitStatus.NOT_PERMITTED
    assert "/run/llmgw/llmgwd.sock" in refused.message


def test_a_path_that_is_too_long_is_2_with_its_length() -> None:
    ended = llmgw("--socket", "/tmp/" + "x" * 120, "ctl", "status")
    assert ended.status == ExitStatus.USAGE
    assert "125 bytes" in ended.stderr


def test_another_version_of_the_protocol_is_told(socket_path: Path) -> None:
    with ScriptedDaemon(socket_path, lambda request: iter([]), version=99) as daemon:
        ended = llmgw("ctl", "status", socket=socket_path)
    assert ended.status == ExitStatus.FAILED
    assert "version 99" in ended.stderr
    assert daemon.requests == []


@pytest.mark.parametrize("word", [b"\xc1", b"\x81\xa4type\xa7Unheard", m.Events(())], ids=["bytes", "reply", "other"])
def test_an_answer_that_is_not_known_is_told_in_words(socket_path: Path, word: Word) -> None:
    with ScriptedDaemon(socket_path, lambda request: iter([word])):
        ended = llmgw("ctl", "model", "list", socket=socket_path)
    assert ended.status == ExitStatus.FAILED
    assert ended.stderr.startswith("error: llmgwd")
    assert "Traceback" not in ended.stderr


def test_an_empty_environment_finds_the_socket_by_its_option(daemon: ScriptedDaemon) -> None:
    ended = llmgw("--socket", str(daemon.path), "ctl", "model", "list", env={})
    assert ended.status == 0
    assert "chat  ready 1/1" in ended.stdout


def test_a_full_disk_is_told_in_words(daemon: ScriptedDaemon) -> None:
    shell = f"{' '.join(PROGRAM)} ctl model list --json > /dev/full"
    ran = subprocess.run(["sh", "-c", shell], env=environment(daemon.path), cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == ExitStatus.FAILED
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_closed_streams_are_no_trouble(daemon: ScriptedDaemon) -> None:
    shell = f"{' '.join(PROGRAM)} ctl model list >&- 2>&-"
    ran = subprocess.run(["sh", "-c", shell], env=environment(daemon.path), cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_listing_imports_nothing_that_slows_it(daemon: ScriptedDaemon) -> None:
    env = environment(daemon.path, PYTHONPROFILEIMPORTTIME="1")
    ended = llmgw("ctl", "model", "list", env=env)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "rich.table" in imported
    assert not imported & {"pydantic", "asyncio", "anyio", "platformdirs", "rich.live", "importlib.metadata"}
