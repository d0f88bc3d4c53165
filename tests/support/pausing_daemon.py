"""The real daemon whose jobs wait at one point for a test: `python -m tests.support.pausing_daemon …`.

A test writes KIND/STEP to the file that LLMGW_TEST_PAUSE names. A job that comes to that step makes `FILE.reached` and
waits, before the step acts, until the file is gone.
"""

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from llmgwd import foreground
from llmgwd.domain.jobs import STEPS
from llmgwd.jobs.run import Run, Step
from llmgwd.jobs.runner import Recipe, Runner
from llmgwd.protocol.states import JobKind
from tests.support.house import House, wait_until

FILE_VARIABLE = "LLMGW_TEST_PAUSE"


class Pausing(Runner):
    """Does what the runner does, and waits where it is told."""

    def __init__(self, services: Any, recipes: Mapping[JobKind, Recipe], *others: Any) -> None:
        waiting = {
            kind: recipe._replace(
                steps=tuple(
                    partial(_wait_then, f"{kind}/{name}", act)
                    for name, act in zip(STEPS[kind], recipe.steps, strict=True)
                )
            )
            for kind, recipe in recipes.items()
        }
        super().__init__(services, waiting, *others)


async def _wait_then(here: str, act: Step, run: Run) -> str:
    file = anyio.Path(os.environ[FILE_VARIABLE])
    if await file.exists() and await file.read_text() == here:
        await anyio.Path(f"{file}.reached").touch()
        while await file.exists():  # noqa: ASYNC110 - another process takes it away
            await anyio.sleep(0.01)
    return await act(run)


class Pauses:
    """A test's end: where the house's next job is to wait."""

    def __init__(self, house: House) -> None:
        self._file = house.root / "pause"
        self._reached = Path(f"{self._file}.reached")
        house.program = [sys.executable, "-m", "tests.support.pausing_daemon"]
        house.own_env[FILE_VARIABLE] = str(self._file)

    def at(self, kind: JobKind, step: str) -> None:
        self._reached.unlink(missing_ok=True)
        self._file.write_text(f"{kind}/{step}")

    def wait_reached(self) -> None:
        wait_until(self._reached.exists, what=f"a job comes to {self._file.read_text()}")

    def let_go(self) -> None:
        self._file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(foreground.run(runner=Pausing))
