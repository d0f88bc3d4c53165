"""Kills daemon, gateway workers and replicas at every point while clients ask, and sees that nothing was lost.

Run by `make chaos`; `python -m tests.chaos --kind promote` kills during one kind of job only. Exits with 1 when a
request failed that nothing excuses, or anything did not hold afterwards. `--steady` kills nothing but the daemon: see
tests/chaos/steady.py.
"""

import argparse
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from llmgwd.protocol import messages as m
from llmgwd.protocol.states import JobKind
from tests.chaos import steady
from tests.chaos.lane import Lane
from tests.chaos.points import Point, Turn, points_of
from tests.support.house import House
from tests.support.local_hub import LocalHub

LANES = (1, 2)
"""Replicas of the models in each lane; lanes run side by side."""
INTERRUPTED = 130
OTHER_KILLS = 4
"""Kills of each kind of process besides the daemon, in each state that a lane is in."""


def run_lane(lane: Lane, kinds: tuple[JobKind, ...]) -> None:
    """Every point of every kind, each in the state that its job needs."""
    left: dict[JobKind, Iterator[Point]] = {kind: iter(points_of(kind)) for kind in kinds}
    todo = {kind: len(points_of(kind)) for kind in kinds}

    def next_point(kind: JobKind) -> Point | None:
        todo[kind] = max(0, todo.get(kind, 0) - 1)
        return next(left.get(kind, iter(())), None)

    lane.house.start()
    lane.add_chat()
    lane.load.start()
    while todo.get(JobKind.ADD) or todo.get(JobKind.REMOVE):
        if lane.add(next_point(JobKind.ADD)):
            lane.remove(next_point(JobKind.REMOVE))
    while todo.get(JobKind.CANARY) or todo.get(JobKind.PROMOTE):
        if not lane.canary(next_point(JobKind.CANARY)):
            continue
        lane.promote(next_point(JobKind.PROMOTE)) if todo.get(JobKind.PROMOTE) else lane.abort()
    while todo.get(JobKind.UPDATE) or todo.get(JobKind.ROLLBACK):
        if lane.update(next_point(JobKind.UPDATE)) and todo.get(JobKind.ROLLBACK):
            lane.rollback(next_point(JobKind.ROLLBACK))
    kill_during_verbs(lane)
    kill_during_turns(lane)
    kill_others(lane)


def kill_during_verbs(lane: Lane) -> None:
    """What was being written when the daemon died holds afterwards."""
    lane.canary(None)
    for percent in (60.0, 0.0, 20.0):
        lane.verb(m.SetPercent("chat", percent), share=percent)
    lane.verb(m.Abort("chat"), share=None)


def kill_during_turns(lane: Lane) -> None:
    """Starts and stops that do not come to their end, with a canary at work."""
    lane.canary(None)
    for turn in Turn:
        lane.turn(turn)
    lane.abort()


def kill_others(lane: Lane) -> None:
    """Workers and replicas, with a canary at work."""
    lane.canary(None)
    for _ in range(OTHER_KILLS):
        lane.kill("gateway worker", lane.workers)
        lane.kill("canary replica", lambda: lane.replicas(canary=True))
        if lane.count > 1:  # the only one of a model takes the model down with it, whoever restarts it
            lane.kill("stable replica", lambda: lane.replicas(canary=False))
    lane.abort()


def guarded(lane: Lane, kinds: tuple[JobKind, ...]) -> None:
    try:
        run_lane(lane, kinds)
    except Exception:  # noqa: BLE001 - a lane that cannot go on is a finding, and the other lane goes on
        lane.tally.broken.append(f"the lane could not go on: {traceback.format_exc()}")
    finally:
        lane.load.stop()


def report(lanes: list[Lane], took_s: float) -> int:
    kills: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for lane in lanes:
        kills += lane.tally.kills
        ends += lane.tally.ends
        for line in (*lane.tally.broken, *lane.tally.failed):
            print(f"[{lane.house.root.name}] {line}", file=sys.stderr)
    broken = sum(len(lane.tally.broken) for lane in lanes)
    failed = sum(len(lane.tally.failed) for lane in lanes)
    answered = sum(lane.load.answered for lane in lanes)
    slowest = max(lane.load.longest_s for lane in lanes)
    print(f"chaos: {kills.total()} kills in {took_s:.0f} s: {', '.join(f'{n} {what}' for what, n in kills.items())}")
    print(f"jobs under way: {', '.join(f'{n} {state}' for state, n in ends.items())}; {broken} promises broken")
    in_flight = sum(lane.tally.in_flight for lane in lanes)
    print(
        f"requests: {answered}, {failed} failed; besides {in_flight} that were on a killed worker or replica; "
        f"the slowest whole answer took {slowest:.1f} s"
    )
    return 1 if broken or failed or not answered else 0


@contextmanager
def lanes_in(folder: Path) -> Iterator[list[Lane]]:
    """Each with a house and a hub of its own, not started."""
    with ExitStack() as opened:
        lanes = []
        for replicas in LANES:
            root = folder / f"{replicas}-replica"
            root.mkdir()
            house = House(root, opened.enter_context(LocalHub(root / "hub")))
            house.settings["gateway"]["workers"] = 2
            house.program = [sys.executable, "-m", "tests.chaos.daemon"]
            opened.callback(stop, house)
            lanes.append(Lane(house, replicas))
        yield lanes


def stop(house: House) -> None:
    if house.process is not None and house.process.poll() is None:
        house.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", type=JobKind, choices=list(JobKind), help="only this kind of job")
    parser.add_argument("--steady", action="store_true", help="10,000 requests at 50 a second through every verb")
    options = parser.parse_args()
    if options.steady:
        return steady.main(10_000, per_s=50)
    kinds = (options.kind,) if options.kind else tuple(JobKind)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llmgw-chaos-") as folder, lanes_in(Path(folder)) as lanes:
        threads = [threading.Thread(target=guarded, args=(lane, kinds), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            print("interrupted; so far:", file=sys.stderr)
            report(lanes, time.monotonic() - began)
            return INTERRUPTED
        return report(lanes, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
