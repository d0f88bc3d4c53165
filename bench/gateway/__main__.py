"""The gateway beside its peers, in one run: `python -m bench.gateway [--quick] [--only llmgw,nginx]`.

Prints two markdown tables and writes every round to .cache/bench/gateway.json. Exits 1 when a target is missed.
"""

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.gateway import report, targets
from bench.gateway.environments import FOLDER, MissingError, ensure_debian
from bench.gateway.figures import Settings
from bench.gateway.processes import StartError
from bench.gateway.rounds import measure
from bench.gateway.subjects import Subject, every_subject

_FILES = 8192
"""Each stream is a descriptor here, two in a proxy, and one in the backend."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.gateway", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="NAMES", help="subjects to measure, separated by commas; direct always is")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure; medians are told")
    parser.add_argument("--seconds", type=int, default=4, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 2 s, short churn: a first look")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rate", type=float, default=200, help="requests a second for the added latency")
    parser.add_argument("--streams", type=int, default=200, help="for the CPU per chunk")
    parser.add_argument("--crowd", type=int, default=1000, help="streams for memory, losses and stalls")
    parser.add_argument("--churn-minutes", type=float, default=0.5, help="of streams that come and go; 0 for none")
    parser.add_argument("--policy", default="round_robin", help="how vllm-router and sglang-router balance")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the wide llmgw")
    parser.add_argument("--nice", type=int, default=0, help="of all processes; below 0 needs root and keeps others out")
    parser.add_argument("--json", type=Path, default=FOLDER / "gateway.json", metavar="FILE")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 even when a target is missed")
    return parser.parse_args(argv)


def chosen(subjects: Sequence[Subject], only: str | None) -> list[Subject]:
    """The subjects to measure. Raises SystemExit for a name that there is not."""
    if only is None:
        return list(subjects)
    names = {name.strip() for name in only.split(",")}
    unknown = names - {subject.name for subject in subjects}
    if unknown:
        known = ", ".join(subject.name for subject in subjects)
        raise SystemExit(f"no subject is called {', '.join(sorted(unknown))}; there are: {known}")
    return [subject for subject in subjects if subject.name in names | {"direct"}]


def settings_from(arguments: argparse.Namespace) -> Settings:
    return Settings(
        seconds=2 if arguments.quick else arguments.seconds,
        connections=arguments.connections,
        rate=arguments.rate,
        streams=arguments.streams,
        crowd=arguments.crowd,
        churn_s=(min(arguments.churn_minutes, 0.2) if arguments.quick else arguments.churn_minutes) * 60,
    )


def main(argv: Sequence[str]) -> int:
    arguments = parse_arguments(argv)
    settings = settings_from(arguments)
    rounds = min(3, arguments.rounds) if arguments.quick else arguments.rounds
    subjects = chosen(every_subject(arguments.policy, arguments.workers), arguments.only)
    allow_files(_FILES)
    set_priority(arguments.nice)
    try:
        ensure_debian("wrk")
        versions = {subject.name: subject.prepare() for subject in subjects}
        with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
            results = measure(subjects, settings, rounds, Path(folder))
    except (MissingError, StartError) as error:
        print(error, file=sys.stderr)
        return 2
    wide = f"llmgw x{arguments.workers}" if arguments.workers > 1 else "llmgw"
    verdicts = targets.judge(results, wide)
    print(report.heading(settings, rounds, arguments.policy), end="\n\n")
    print(report.main_table(results, subjects, versions, settings), end="\n\n")
    print(report.targets_table(verdicts))
    report.write_json(arguments.json, results, verdicts, versions, settings)
    return 1 if targets.is_missed(verdicts) and not arguments.no_fail else 0


def set_priority(nice: int) -> None:
    """For this process and its children: as nice is, and for their session, which Linux may weigh as a whole."""
    os.nice(nice)
    autogroup = Path("/proc/self/autogroup")
    if nice and autogroup.exists():
        autogroup.write_text(str(nice))


def allow_files(count: int) -> None:
    """Raises this process's limit of open files, which its children inherit, as far as it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
