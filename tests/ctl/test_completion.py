"""Names completed from the daemon, and the files that shells load."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_ctl.completion_files import FOLDER, NAMES, write
from llmgwd.protocol import messages as m
from tests.ctl.house import CANARY_ID
from tests.ctl.program import PROGRAM, ROOT, environment, llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Word


def completed(words: str, socket: Path) -> list[str]:
    """What bash is offered for the last of the words."""
    asked = {
        "_LLMGW_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
    }
    ended = llmgw(env=environment(socket, **asked))
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("llmgw ctl model show ", ["chat", "base"]),
        ("llmgw ctl model canary ch", ["chat"]),
        ("llmgw ctl model canaries b", ["base"]),
        ("llmgw ctl events --model c", ["chat"]),
        ("llmgw ctl jobs cancel canary-", [CANARY_ID] * 3),
        ("llmgw ctl jobs w", ["watch"]),
        ("llmgw ctl model canary chat --until", ["--until-verdict"]),
    ],
)
def test_words_are_completed(daemon: ScriptedDaemon, words: str, offered: list[str]) -> None:
    assert completed(words, daemon.path) == offered


def test_the_socket_given_on_the_line_is_asked(daemon: ScriptedDaemon) -> None:
    assert completed(f"llmgw --socket {daemon.path} ctl model show b", Path("/nonexistent")) == ["base"]


def test_without_a_daemon_nothing_is_offered_or_said(socket_path: Path) -> None:
    assert completed("llmgw ctl model show ", socket_path) == []


def test_a_daemon_that_takes_its_time_is_not_waited_for(socket_path: Path) -> None:
    asked = threading.Event()

    def slow(request: m.Request) -> Iterator[Word]:
        asked.wait(60)
        yield m.Models(())

    with ScriptedDaemon(socket_path, slow):
        # It comes back although no answer ever does.
        assert completed("llmgw ctl model show ", socket_path) == []
        asked.set()


def test_the_files_are_those_the_program_writes(tmp_path: Path) -> None:
    write(tmp_path)
    for name in NAMES.values():
        written = (tmp_path / name).read_text()
        assert written == (FOLDER / name).read_text(), "run python -m llmgw_ctl.completion_files"


def test_bash_completes_with_the_file(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    program = tmp_path / "llmgw"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {" ".join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    typed = "COMP_WORDS=(llmgw ctl model show ''); COMP_CWORD=4; _llmgw_completion llmgw; echo ${COMPREPLY[@]}"
    env = environment(daemon.path)
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    script = f"source {FOLDER / 'llmgw.bash'}; {typed}"
    ran = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=20)
    assert ran.stdout.split() == ["chat", "base"]


def test_typer_installs_completion(tmp_path: Path) -> None:
    argv = [*PROGRAM, "--install-completion"]
    env = environment(None, SHELL="/bin/bash", PYTHONPATH=str(ROOT)) | {"HOME": str(tmp_path)}
    # Typer asks which shell it was started from; the `:` keeps bash from being replaced by the program.
    subprocess.run(["bash", "-c", f"{' '.join(argv)}; :"], env=env, capture_output=True, timeout=20, check=True)
    installed = (tmp_path / ".bash_completions" / "llmgw.sh").read_text()
    assert "_LLMGW_COMPLETE=complete_bash" in installed
