"""Log files are read where the daemon says they are."""

import json
from collections.abc import Iterator
from pathlib import Path

from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from tests.ctl.program import OnTerminal, llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Word


def daemon_with(socket_path: Path, paths: list[Path]) -> ScriptedDaemon:
    def script(request: m.Request) -> Iterator[Word]:
        yield m.Logs([str(path) for path in paths])

    return ScriptedDaemon(socket_path, script)


def test_one_file_is_copied_as_it_is(socket_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "chat-1.log"
    log.write_bytes("loaded in 2 s\nläuft\n".encode())
    with daemon_with(socket_path, [log]):
        assert llmgw("ctl", "model", "logs", "chat", socket=socket_path) == (0, "loaded in 2 s\nläuft\n", "")


def test_several_files_have_headings(socket_path: Path, tmp_path: Path) -> None:
    logs = [tmp_path / "chat-1.log", tmp_path / "chat-2.log"]
    for log in logs:
        log.write_text(f"this is {log.stem}\n")
    with daemon_with(socket_path, logs):
        ended = llmgw("ctl", "model", "logs", "chat", socket=socket_path)
        as_json = llmgw("ctl", "model", "logs", "chat", "--json", socket=socket_path)
    assert ended.stdout == f"==> {logs[0]} <==\nthis is chat-1\n\n==> {logs[1]} <==\nthis is chat-2\n"
    assert json.loads(as_json.stdout) == [str(log) for log in logs]


def test_follow_goes_on_with_new_lines_and_new_files_until_ctrl_c(socket_path: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "chat-1.log"]
    paths[0].write_text("first\n")
    with daemon_with(socket_path, paths):
        terminal = OnTerminal("ctl", "model", "logs", "chat", "-f", socket=socket_path)
        terminal.wait_for("first")
        with paths[0].open("a") as log:
            log.write("second\n")
        terminal.wait_for("second")
        (tmp_path / "chat-2.log").write_text("from a new replica\n")
        paths.append(tmp_path / "chat-2.log")
        terminal.wait_for("from a new replica")
        terminal.type("\x03")
        assert terminal.end() == ExitStatus.INTERRUPTED
    assert terminal.text.count("first") == 1


def test_a_log_that_is_not_there_is_named(socket_path: Path, tmp_path: Path) -> None:
    with daemon_with(socket_path, [tmp_path / "gone.log"]):
        ended = llmgw("ctl", "model", "logs", "chat", socket=socket_path)
    assert ended.status == ExitStatus.FAILED
    assert str(tmp_path / "gone.log") in ended.stderr


def test_a_model_without_logs_is_4(socket_path: Path) -> None:
    with daemon_with(socket_path, []):
        ended = llmgw("ctl", "model", "logs", "chat", socket=socket_path)
    assert ended.status == ExitStatus.UNKNOWN
    assert "chat has no log files" in ended.stderr
