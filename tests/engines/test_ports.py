"""Ports for replicas."""

import os
import socket
import subprocess
import sys

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.engines import ports
from llmgwd.engines.ports import FIRST, LAST, free_port, is_taken, usable, was_taken_before

SLEEPER = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]


@pytest.mark.parametrize(
    ("own", "first", "last"),
    [
        pytest.param(range(32_768, 61_000), FIRST, LAST, id="as Linux has it"),
        pytest.param(range(0), FIRST, LAST, id="not known"),
        pytest.param(range(25_000, 61_000), FIRST, 24_999, id="it reaches into ours"),
        pytest.param(range(10_000, 65_536), 1_024, 9_999, id="it covers ours"),
        pytest.param(range(1_024, 65_536), FIRST, LAST, id="it covers all"),
    ],
)
def test_no_port_is_one_that_connections_are_given(own: range, first: int, last: int) -> None:
    found = usable(own)
    assert (found[0], found[-1]) == (first, last)


def test_a_port_that_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        monkeypatch.setattr(ports, "usable", lambda _: [port])
        assert is_taken("127.0.0.1", port)
        with pytest.raises(LlmgwError, match="is free on"):
            free_port("127.0.0.1", ())
    assert free_port("127.0.0.1", ()) == port
    with pytest.raises(LlmgwError, match="is free on"):
        free_port("127.0.0.1", {port})


def test_who_listened_before_a_process_started_is_none_of_its_children() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as stranger,
        subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as younger,
    ):
        assert younger.stdout and younger.stdin
        younger.stdout.readline()
        port = stranger.getsockname()[1]
        assert was_taken_before(younger.pid, port)
        assert not was_taken_before(os.getpid(), port)
        younger.stdin.close()
