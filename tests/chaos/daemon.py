"""The real daemon with a runner that ends it with SIGKILL at one point of a job: `python -m tests.chaos.daemon …`.

The point stands in the file that LLMGW_TEST_POINT names; the file is taken away when the point is reached.
"""

import os
import signal
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from llmgwd import daemon, foreground
from llmgwd.engines.fleet import Fleet
from llmgwd.jobs.run import Run
from llmgwd.jobs.runner import Runner
from llmgwd.protocol.states import StepState
from tests.chaos.points import FILE_VARIABLE, VERB, Moment, Point, Turn


class Dying(Runner):
    """Does what the runner does, until the point comes."""

    def __init__(self, services: Any, *others: Any) -> None:
        super().__init__(services, *others)
        self._publish_routes, self._publish_job = services.dataplane.publish, services.feed.publish
        services.dataplane.publish, services.feed.publish = self._before_routes, self._before_publish

    def _begin_step(self, run: Run, index: int) -> None:
        self._here(run, index, Moment.BEFORE_INTENT)
        super()._begin_step(run, index)
        self._here(run, index, Moment.AFTER_INTENT)

    def _end_step(self, run: Run, index: int, state: StepState, detail: str) -> None:
        self._here(run, index, Moment.AFTER_ACT)
        super()._end_step(run, index, state, detail)

    def _before_publish(self, key: str) -> None:
        """The result is on disk, and nobody was told."""
        run = self._runs.get(key)
        if run is not None:
            ended = [i for i, step in enumerate(run.job.steps) if step.state in (StepState.DONE, StepState.SKIPPED)]
            if ended:
                self._here(run, ended[-1], Moment.BEFORE_PUBLISH)
        self._publish_job(key)

    async def _before_routes(self) -> int:
        """The change is on disk, and the gateway does not follow it yet."""
        for run in self._runs.values():
            for index, step in enumerate(run.job.steps):
                if step.state is StepState.RUNNING:
                    self._here(run, index, Moment.BEFORE_ROUTES)
        if not self._runs:
            _die_at(VERB)
        version: int = await self._publish_routes()
        return version

    def _here(self, run: Run, index: int, moment: Moment) -> None:
        _die_at(str(Point(run.job.kind, run.job.steps[index].name, moment)))

    def resume(self) -> None:
        _die_at(Turn.RESUMING)
        super().resume()
        _die_at(Turn.RESUMED)

    async def stop(self) -> None:
        await super().stop()
        _die_at(Turn.STOPPING)


def _die_at(here: str) -> None:
    file = Path(os.environ[FILE_VARIABLE])
    if file.exists() and file.read_text() == here:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _dies_after(owner: Any, name: str, here: Turn) -> None:
    """The daemon dies once that function has done its work."""
    act = getattr(owner, name)

    @wraps(act)
    async def dying(*args: Any) -> Any:
        result = await act(*args)
        _die_at(here)
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    _dies_after(Fleet, "adopt", Turn.ADOPTED)
    _dies_after(daemon, "declare", Turn.DECLARED)
    sys.exit(foreground.run(runner=Dying))
