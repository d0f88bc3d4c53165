"""What is said of weights on disk that were hashed again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.views import VerifiedView
from tests.ctl.program import llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon, Word

WHOLE = VerifiedView("a/b", "1" * 40, "1 file, hashed again", "", (), files=1)
REPAIRED = VerifiedView("a/c", "2" * 40, "fetched again what was damaged", "c.gguf is cut", (), repaired=True, files=2)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param((), "no fetched weights on disk; local weights are not checked", id="nothing"),
        pytest.param((WHOLE,), "1 revision, 1 file, all as they should be", id="one"),
        pytest.param((WHOLE, REPAIRED), "2 revisions, 3 files, all as they should be", id="repaired"),
    ],
)
def test_a_verification_ends_with_what_it_looked_at(
    socket_path: Path, found: tuple[VerifiedView, ...], said: str
) -> None:
    def answer(request: m.Request) -> Iterator[Word]:
        yield m.Verified(found)

    with ScriptedDaemon(socket_path, answer):
        ended = llmgw("ctl", "weights", "verify", socket=socket_path)
    assert (ended.status, ended.stdout.splitlines()[-1]) == (0, said)
    assert len(ended.stdout.splitlines()) == len(found) + 1


def test_a_verification_that_found_damage_does_not_end_well(socket_path: Path) -> None:
    def answer(request: m.Request) -> Iterator[Word]:
        yield m.Verified((WHOLE, VerifiedView("a/c", "2" * 40, "", "c.gguf is cut", ())))

    with ScriptedDaemon(socket_path, answer):
        ended = llmgw("ctl", "weights", "verify", socket=socket_path)
    assert (ended.status, "as they should be" in ended.stdout) == (1, False)
