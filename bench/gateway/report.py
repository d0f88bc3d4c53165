"""The results as markdown tables and as JSON."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.gateway.figures import SLOW_PART, Settings
from bench.gateway.results import Results
from bench.gateway.subjects import Subject
from bench.gateway.targets import Verdict

_Column = tuple[str, Callable[[Results, str], str]]
_NOT_MEASURED = "–"


def main_table(results: Results, subjects: Sequence[Subject], versions: Mapping[str, str], settings: Settings) -> str:
    """A row for each subject; medians over rounds."""
    columns = _columns(settings)
    rows = []
    for subject in subjects:
        mark = " *" if subject.is_slow else ""
        name = f"{subject.name}{mark} ({versions[subject.name]})" if versions[subject.name] else subject.name
        rows.append([name, *(cell(results, subject.name) for _, cell in columns)])
    table = _table(["", *(title for title, _ in columns)], rows)
    if not any(subject.is_slow for subject in subjects):
        return table
    return f"{table}\n\n\\* with a {SLOW_PART}th of the rate and of the streams: more would only measure its queue."


def targets_table(verdicts: Sequence[Verdict]) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [[each.figure, each.limit, _number(each.value, 2), words[each.is_met]] for each in verdicts]
    return _table(["figure of llmgw", "to reach", "measured", "reached"], rows)


def heading(settings: Settings, rounds: int, policy: str) -> str:
    """What one must know to repeat it."""
    return (
        f"{rounds} rounds of {settings.seconds} s, {os.cpu_count()} cores, Linux {platform.release()}, Python "
        f"{platform.python_version()}; routers balance by {policy}; CPU is user + system of the process tree; RSS and "
        f"silence with {settings.crowd} streams, CPU per chunk with {settings.streams}."
    )


def write_json(
    path: Path, results: Results, verdicts: Sequence[Verdict], versions: Mapping[str, str], settings: Settings
) -> None:
    content = {
        "settings": asdict(settings),
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "versions": dict(versions),
        "targets": [asdict(verdict) for verdict in verdicts],
        "reported": results.reported,
        "rounds": results.rounds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _columns(settings: Settings) -> list[_Column]:
    def median(figure: str, name: str, digits: int) -> Callable[[Results, str], str]:
        return lambda results, subject: _number(results.median(subject, figure, name), digits)

    def added(figure: str, name: str) -> Callable[[Results, str], str]:
        def cell(results: Results, subject: str) -> str:
            return _NOT_MEASURED if subject == "direct" else _number(results.added(subject, figure, name), 2)

        return cell

    def used(figure: str, name: str) -> Callable[[Results, str], str]:
        def cell(results: Results, subject: str) -> str:
            return _NOT_MEASURED if subject == "direct" else _number(results.median(subject, figure, name), 1)

        return cell

    return [
        ("CPU µs/request", used("busy", "cpu_us_per_request")),
        (f"CPU µs/request at {settings.rate:g}/s", used("paced", "cpu_us_per_request")),
        ("CPU µs/chunk", used("streams", "cpu_us_per_chunk")),
        (f"requests/s c={settings.connections}", median("busy", "requests_per_s", 0)),
        ("p50 ms", median("busy", "p50_ms", 2)),
        ("p99 ms", median("busy", "p99_ms", 2)),
        (f"added p50 at {settings.rate:g}/s, ms", added("paced", "p50_ms")),
        (f"added p99 at {settings.rate:g}/s, ms", added("paced", "p99_ms")),
        ("added first token p50, ms", added("streams", "first_token_p50_ms")),
        ("RSS MB", used("crowd", "rss_mb")),
        ("lost / stalled", _lost),
        ("longest silence ms", median("crowd", "longest_gap_ms", 0)),
    ]


def _lost(results: Results, subject: str) -> str:
    lost, stalled = results.total(subject, "crowd", "lost"), results.median(subject, "crowd", "stalled")
    return _NOT_MEASURED if lost is None else f"{lost:g} / {stalled:g}"


def _number(value: float | None, digits: int) -> str:
    return _NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
