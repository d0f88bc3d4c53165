"""Replicas that hang, and that crash again and again, as clients and people see it."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.house import House, add_chat, house_on, wait_until
from tests.support.toy_engine import Behaviour


def replica(house: House) -> dict[str, Any]:
    (found,) = house.model()["replicas"]
    assert isinstance(found, dict)
    return found


def test_a_crash_loop_is_shown_with_what_the_engine_said_last(house: House) -> None:
    add_chat(house, Behaviour(ends_after=1))

    def crash() -> bool:
        if house.model()["ready"]:
            with suppress(OSError):
                house.ask()
        return int(replica(house)["failures"]) >= 3

    def in_crash_loop(shown: str) -> str:
        """What is shown, unless it was started again meanwhile and is to crash once more."""
        return shown if crash() and "crash loop 0/1" in shown else ""

    wait_until(crash)
    shown = wait_until(lambda: in_crash_loop(house.ok("status")))
    assert re.search(r"failed \d times in a row, starts again in \d+ s", shown)
    assert "error: the toy is broken" in shown
    looped = wait_until(lambda: (found := replica(house))["state"] == "crash_loop" and crash() and found)
    assert "error: the toy is broken" in looped["last_lines"]


def test_a_hung_replica_is_restarted_but_never_while_it_streams(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["engines"]["toy"] |= {"probe_every": "300ms", "probe_timeout": "300ms"}
        house.start()
        # A long answer, and no room for a probe beside it.
        words = " ".join(["word"] * 40)
        add_chat(house, Behaviour(words=words, token_s=0.1, one_at_a_time=True))
        (pid,) = house.engine_pids()
        with house.stream() as lines:
            assert sum(b"word" in line for line in lines) == 40
        assert house.engine_pids() == {pid}
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: house.engine_pids() and house.engine_pids().isdisjoint({pid}))
        wait_until(lambda: house.model()["ready"] == 1)
        assert house.ask(max_tokens=1)[0] == "stable"
        assert "did not answer 2 probes in a row" in house.log.read_text()
