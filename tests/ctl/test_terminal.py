"""What a person sees: in colour, in place, and no wider than the terminal."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import CanaryPhase, VerdictState
from llmgwd.protocol.views import VerdictView
from tests.ctl.house import CANARY, CANARY_ID, STEP_NAMES, course, finished, well
from tests.ctl.program import CONTROLS, ESCAPES, OnTerminal, llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Word

PAGES = [
    "model list",
    "model show chat",
    "model canaries",
    "jobs list",
    "jobs show x",
    "status",
    "events",
    "weights list",
]


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_terminal(daemon: ScriptedDaemon, page: str, columns: int) -> None:
    terminal = OnTerminal("ctl", *page.split(), socket=daemon.path, columns=columns)
    assert terminal.end() == 0
    assert max(len(line) for line in terminal.lines) <= columns
    whole = " ".join(" ".join(line.split()) for line in terminal.lines)
    wanted = {
        "model list": ["chat ready 1/1 llamacpp 10 %", "acme/chat-gguf@5f3a9c1", "/srv/weights/base.gguf"],
        "model canaries": [
            "requests 1,804 201",
            "bad 0.2 % 0.5 %",
            "10 % wanted, 9.9 % of requests and 10.1 % of tokens so far",
            "5f3a9c1 → 9b1c2d3",
            "in flight 3.4 0.4 slots busy 84.2 % 9.7 % all tokens/s 1,138.6 15.6",
        ],
        "jobs list": [CANARY_ID, "chat-canary is given 10 % of chat's requests"],
        "events": ["canary rolled back llmgw", "10 % → 0 %; worse: 9 of 120 answers"],
        "weights list": [
            "acme/chat-gguf 5f3a9c1 93.8 MiB 1.2 MiB chat",
            "fetches that did not end – 39.1 MiB",
            "`llmgw ctl weights prune` gives 40.3 MiB",
        ],
        "status": ["chat-canary serving 10 % undecided", "http://127.0.0.1:8080, 1 worker"],
    }
    for words in wanted.get(page, ["chat"]):
        assert words in whole


@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_pipe_is_plain_and_unfolded(daemon: ScriptedDaemon, page: str) -> None:
    ended = llmgw("ctl", *page.split(), socket=daemon.path)
    assert (ended.status, ended.stderr) == (0, "")
    assert not CONTROLS.search(ended.stdout)
    assert not any(line != line.rstrip() for line in ended.stdout.splitlines())


def test_steps_are_redrawn_in_place_with_ticks(daemon: ScriptedDaemon) -> None:
    terminal = OnTerminal("ctl", "model", "canary", "chat", socket=daemon.path)
    assert terminal.end() == 0
    assert "\x1b[" in terminal.text
    shown = terminal.lines
    for name in STEP_NAMES:
        assert any(line.startswith(f"✔  {name}") for line in shown)
    assert shown[-1] == "chat-canary is given 10 % of chat's requests"


@pytest.mark.parametrize("columns", [60, 100])
def test_fetching_shows_bytes_rate_and_time_left_and_ctrl_c_leaves_it(socket_path: Path, columns: int) -> None:
    release = threading.Event()

    def script(request: m.Request) -> Iterator[Word]:
        if not isinstance(request, m.WatchJob):
            yield from well()(request)
            return
        for job in course(lambda: release.wait(0.1)):
            yield m.JobChanged(job)
            if job.steps[1].progress and job.steps[1].progress.done > 50_000_000:
                release.wait(20)
                return

    with ScriptedDaemon(socket_path, script):
        terminal = OnTerminal("ctl", "model", "canary", "chat", socket=socket_path, columns=columns)
        terminal.wait_for("58.7 MiB of 93.9 MiB")
        terminal.wait_for("MiB/s")
        terminal.wait_for(" left")
        terminal.wait_for("━")
        terminal.type("\x03")
        assert terminal.end() == ExitStatus.INTERRUPTED
        release.set()
    assert max(len(line) for line in terminal.lines) <= columns
    assert CANARY_ID in terminal.lines[-1] or CANARY_ID in terminal.lines[-2]
    # The cursor was hidden while drawing and is back.
    assert terminal.text.rfind("\x1b[?25h") > terminal.text.rfind("\x1b[?25l")


def test_until_verdict_draws_the_canary(socket_path: Path) -> None:
    seen = threading.Event()

    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchCanary):
            yield m.CanaryChanged(CANARY)
            seen.wait(20)
            yield m.Canaries((finished(CanaryPhase.PROMOTED, "fine after 600 requests"),))
        else:
            yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        terminal = OnTerminal("ctl", "model", "canary", "chat", "--until-verdict", socket=socket_path)
        terminal.wait_for("waiting for the verdict")
        seen.set()
        assert terminal.end() == 0
    assert terminal.lines[-1] == "chat-canary was promoted: fine after 600 requests"


@pytest.mark.parametrize(("rows", "has_figures"), [(50, True), (12, False)])
def test_a_low_terminal_shows_the_verdict_rather_than_the_figures(
    socket_path: Path, rows: int, has_figures: bool
) -> None:
    seen = threading.Event()

    def script(request: m.Request) -> Iterator[Word]:
        if isinstance(request, m.WatchCanary):
            yield m.CanaryChanged(CANARY)
            seen.wait(20)
        yield from well()(request)

    with ScriptedDaemon(socket_path, script):
        watch = ("ctl", "model", "canary", "chat", "--until-verdict")
        terminal = OnTerminal(*watch, socket=socket_path, rows=rows)
        terminal.wait_for("waiting for the verdict")
        shown = terminal.text
        seen.set()
        assert terminal.end() == 0
    assert "undecided" in shown
    assert ("all tokens/s" in shown) is has_figures


def test_why_a_canary_was_rolled_back_is_said_once(socket_path: Path) -> None:
    why = "9 of 120 canary answers were bad"
    verdict = VerdictView(VerdictState.WORSE, why)
    gone = msgspec.structs.replace(finished(CanaryPhase.ROLLED_BACK, why), verdict=verdict)

    def script(request: m.Request) -> Iterator[Word]:
        yield m.Canaries((gone,))

    with ScriptedDaemon(socket_path, script):
        said = llmgw("ctl", "model", "canaries", "--ended", socket=socket_path).stdout
    assert said.count(why) == 1
    assert "verdict        worse\n" in said


def test_a_canary_that_ended_without_a_request_has_no_figures(socket_path: Path) -> None:
    failed = msgspec.structs.replace(finished(CanaryPhase.FAILED, "its weights do not load"), share_real=None)

    def script(request: m.Request) -> Iterator[Word]:
        yield m.Canaries((failed,))

    with ScriptedDaemon(socket_path, script):
        said = llmgw("ctl", "model", "canaries", "--ended", socket=socket_path).stdout
    assert "10 % wanted, no requests\n" in said
    assert "its weights do not load" in said
    assert "first token" not in said


def test_no_color_has_no_colour(daemon: ScriptedDaemon) -> None:
    plain = OnTerminal("ctl", "model", "list", socket=daemon.path, NO_COLOR="1")
    coloured = OnTerminal("ctl", "model", "list", socket=daemon.path)
    assert plain.end() == coloured.end() == 0
    assert "\x1b[32m" in coloured.text
    assert "[32m" not in plain.text


@pytest.mark.parametrize("argv", [["model", "canary", "chat"], ["model", "list"], ["model", "show", "nope"], []])
def test_a_dumb_terminal_gets_no_escapes(daemon: ScriptedDaemon, argv: list[str]) -> None:
    terminal = OnTerminal("ctl", *argv, socket=daemon.path, TERM="dumb")
    terminal.end()
    assert not ESCAPES.search(terminal.text)
    assert "╭" not in terminal.text


@pytest.mark.parametrize("columns", [60, 100])
def test_help_is_drawn_within_the_terminal(daemon: ScriptedDaemon, columns: int) -> None:
    terminal = OnTerminal("ctl", "model", "canary", "--help", socket=daemon.path, columns=columns)
    assert terminal.end() == 0
    assert max(len(line) for line in terminal.lines) <= columns
    assert "--until-verdict" in " ".join(terminal.lines)


@pytest.mark.parametrize(("answer", "status", "asked"), [("y\n", 0, 1), ("n\n", 1, 0)], ids=["yes", "no"])
def test_remove_asks_on_a_terminal(daemon: ScriptedDaemon, answer: str, status: int, asked: int) -> None:
    terminal = OnTerminal("ctl", "model", "remove", "chat", socket=daemon.path)
    terminal.wait_for("[y/N]")
    terminal.type(answer)
    assert terminal.end() == status
    assert daemon.requests.count(m.RemoveModel("chat")) == asked
