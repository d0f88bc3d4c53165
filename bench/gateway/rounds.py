"""The order of the measurements: every round takes each subject once, so that noise falls on all of them."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.gateway import figures
from bench.gateway.backends import plain_backend, stream_backend
from bench.gateway.figures import Settings
from bench.gateway.results import Results
from bench.gateway.subjects import Running, Subject, start_ready

Record = TypeVar("Record")
Started = dict[Subject, Running]


def measure(subjects: Sequence[Subject], settings: Settings, rounds: int, folder: Path) -> Results:
    """Plain completions first, then streams; the subjects are started anew for each backend."""
    results = Results()
    with plain_backend(folder) as upstream, _all_started(subjects, upstream, folder / "whole", results) as started:
        _measure_whole(started, settings, rounds, folder, results)
    streaming = [subject for subject in subjects if subject.carries_streams]
    with stream_backend(folder) as upstream, _all_started(streaming, upstream, folder / "stream", results) as started:
        _measure_streamed(started, settings, rounds, results)
    return results


def _measure_whole(started: Started, settings: Settings, rounds: int, folder: Path, results: Results) -> None:
    def busy(_: Subject, running: Running) -> figures.Busy:
        return figures.busy(running, settings, folder)

    def paced(subject: Subject, running: Running) -> figures.Paced:
        return _run(figures.paced(running, settings, subject.is_slow))

    for subject, running in started.items():
        _say(f"warm-up {subject.name}")
        figures.busy(running, replace(settings, seconds=1), folder)
    _by_turns("busy", busy, started, rounds, results)
    _by_turns("paced", paced, started, rounds, results)


def _measure_streamed(started: Started, settings: Settings, rounds: int, results: Results) -> None:
    def streams(subject: Subject, running: Running) -> figures.Streams:
        return _run(figures.streams(running, settings, subject.is_slow))

    def crowd(subject: Subject, running: Running) -> figures.Crowd:
        return _run(figures.crowd(running, settings, subject.is_slow))

    _by_turns("streams", streams, started, rounds, results)
    _by_turns("crowd", crowd, started, rounds, results)
    if settings.churn_s > 0:
        ours = {subject: running for subject, running in started.items() if running.link is not None}
        _by_turns("churn", lambda _, running: _run(figures.churn(running, settings)), ours, 1, results)


def _by_turns(
    figure: str, act: Callable[[Subject, Running], object], started: Started, rounds: int, results: Results
) -> None:
    for number in range(rounds):
        for subject, running in started.items():
            _say(f"{figure} {number + 1}/{rounds} {subject.name}")
            results.add(subject.name, figure, act(subject, running))


@contextmanager
def _all_started(subjects: Sequence[Subject], upstream: int, folder: Path, results: Results) -> Iterator[Started]:
    """All subjects in front of one backend; at the end what llmgw reported is kept under the folder's name."""
    with ExitStack() as stack:
        started: Started = {}
        for subject in subjects:
            _say(f"start {subject.name}")
            running = started[subject] = start_ready(subject, upstream, folder / subject.name.replace(" ", "-"))
            stack.callback(running.end)
        yield started
        for subject, running in started.items():
            if running.link is not None:
                results.reported.setdefault(subject.name, {})[folder.name] = running.link.settled()


def _run(measurement: Coroutine[Any, Any, Record]) -> Record:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measurement)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
