"""One house that is killed again and again while clients ask it all the time."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from llmgw_ctl.client import Connection, connect
from llmgw_ctl.failures import CommandError
from llmgwd import process
from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.views import JobView
from tests.chaos.checks import broken_promises, pids_of, short
from tests.chaos.points import FILE_VARIABLE, VERB, Point, Turn
from tests.support.house import REPO, House, wait_until
from tests.support.load import Load
from tests.support.toy_engine import Behaviour

DIES_WITHIN_S, SETTLES_WITHIN_S = 30.0, 60.0
EXTRA, EXTRA_REPO = "extra", "acme/extra-GGUF"


@dataclass
class Tally:
    """What came of the kills of a lane."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """How the jobs that were under way ended."""
    in_flight: int = 0
    """Requests that were on a worker or replica when that was killed."""
    failed: list[str] = field(default_factory=list)
    """Requests that nothing excuses."""
    broken: list[str] = field(default_factory=list)
    """What did not hold afterwards."""


class Lane:
    """Drives one house. A point is where the daemon is killed during a job; None lets the job run through."""

    def __init__(self, house: House, replicas: int) -> None:
        self.house = house
        self.count = replicas
        self.tally = Tally()
        self.load = Load(house, clients=2, pause_s=0.01)
        self._commits = 0
        self._seen = 0
        self._events: list[object] = []
        self._point_file = house.root / "point"
        house.own_env[FILE_VARIABLE] = str(self._point_file)

    @contextmanager
    def asked(self) -> Iterator[Connection]:
        with connect(self.house.socket) as connection:
            yield connection

    def job(self, request: m.Request, point: Point | None) -> JobView:
        """Starts a job, kills the daemon at the point, starts it again, and sees the job to its end."""
        if point is not None:
            self._point_file.write_text(str(point))
        try:
            with self.asked() as connection:
                connection.act(request)
        except CommandError as error:
            # At an early point it died before it could answer.
            if point is None or error.status is not ExitStatus.NO_DAEMON:
                raise
        if point is not None:
            self._dies(point)
        ended = wait_until(self._newest_ended, SETTLES_WITHIN_S, f"the job ends, killed at {point}")
        assert isinstance(ended, JobView)
        if point is not None:
            self.tally.ends[ended.state] += 1
            self.see(str(point))
            print(f"[{self.house.root.name}] killed at {point}: {ended.id} is {ended.state}", flush=True)
        return ended

    def verb(self, request: m.Request, *, share: float | None) -> None:
        """Kills the daemon between what a verb writes and its taking effect; afterwards the canary has this share."""
        self._point_file.write_text(VERB)
        try:
            with self.asked() as connection:
                connection.verb(request)
        except CommandError as error:
            if error.status is not ExitStatus.NO_DAEMON:
                raise
        self._dies(VERB)
        self.see(f"{type(request).__name__}")
        if self.share() != share:
            self.tally.broken.append(f"{request} was lost: the canary's share is {self.share()}")
        print(f"[{self.house.root.name}] killed during {type(request).__name__}", flush=True)

    def turn(self, turn: Turn) -> None:
        """Kills the daemon in the middle of a start or a stop; the next start has all as it was."""
        daemon = self.house.process
        assert daemon is not None
        engines = self.house.engine_pids()
        self._point_file.write_text(turn)
        if turn is Turn.STOPPING:
            daemon.terminate()
        else:
            daemon.kill()
            daemon.wait()
            self.house.launch()
        self._dies(turn)
        self.see(turn)
        if self.house.engine_pids() != engines:
            self.tally.broken.append(f"{turn}: replicas were started anew")
        print(f"[{self.house.root.name}] killed when {turn}", flush=True)

    def share(self) -> float | None:
        """What the canary is given; None without one."""
        with self.asked() as connection:
            canaries = connection.ask(m.ListCanaries("chat"), m.Canaries).canaries
        return canaries[0].share if canaries else None

    def _dies(self, point: Point | str) -> None:
        daemon = self.house.process
        assert daemon is not None
        try:
            daemon.wait(DIES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.tally.broken.append(f"{point} was never reached")
            self._point_file.unlink(missing_ok=True)
            return
        self.tally.kills["daemon"] += 1
        self.house.start()

    def kill(self, what: str, pids: Callable[[], list[int]]) -> None:
        """Kills one process other than the daemon, and waits until all is well again."""
        pid = wait_until(pids, SETTLES_WITHIN_S, f"a {what} to kill")[0]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: process.identity(pid) is None)
        self.tally.kills[what] += 1
        self.see(what, dying=(began, time.monotonic()))
        print(f"[{self.house.root.name}] killed a {what}", flush=True)

    def see(self, what: str, dying: tuple[float, float] | None = None) -> None:
        """Notes what does not hold once there was time for it, and what clients saw meanwhile.

        `dying` is from when to when a worker or replica died: what was on it then is counted apart.
        """
        broken: list[str] = ["nothing was looked at"]
        end = time.monotonic() + SETTLES_WITHIN_S
        while broken and time.monotonic() < end:
            with self.asked() as connection:
                broken = broken_promises(self.house, connection, self._events)
            if broken:
                time.sleep(0.1)  # what is wrong may still be on its way
        self.tally.broken += [f"after {what}: {each}" for each in broken]
        problems, self._seen = self.load.problems[self._seen :], len(self.load.problems)
        for problem in problems:
            if dying is not None and problem.began <= dying[1] and problem.ended >= dying[0]:
                self.tally.in_flight += 1
            else:
                self.tally.failed.append(f"{what}: {problem.what[:300]}")

    def workers(self) -> list[int]:
        return pids_of(self.house, "worker")

    def replicas(self, *, canary: bool) -> list[int]:
        """Pids of the engines of the models, or of their canaries, once all of them serve."""
        with self.asked() as connection:
            status = connection.ask(m.GetStatus(), m.Status).status
        stable = {replica.pid for each in status.models for replica in each.replicas}
        if any(short(each) for each in status.models):
            return []
        return [pid for pid in pids_of(self.house, "engine") if (pid not in stable) is canary]

    # The jobs. Each commit is of weights that answer with words of their own.

    def commit(self, repo: str) -> None:
        self._commits += 1
        words = f"revision {self._commits} of {self.house.root.name}"
        self.house.hub.commit(repo, {"chat.gguf": Behaviour(words=words, token_s=0.002).weights()})

    def add(self, point: Point | None, name: str = EXTRA, repo: str = EXTRA_REPO) -> bool:
        self.commit(repo)
        request = m.AddModel(name, m.WeightsChoice(repo=repo), engine="toy", replicas=self.count)
        return self.job(request, point).state == "done"

    def add_chat(self) -> None:
        self.add(None, "chat", REPO)

    def remove(self, point: Point | None) -> None:
        self.job(m.RemoveModel(EXTRA), point)

    def canary(self, point: Point | None) -> bool:
        self.commit(REPO)
        return self.job(m.StartCanary("chat", percent=30), point).state == "done"

    def abort(self) -> None:
        with self.asked() as connection:
            connection.verb(m.Abort("chat"))

    def promote(self, point: Point | None) -> None:
        self.job(m.Promote("chat"), point)

    def update(self, point: Point | None) -> bool:
        self.commit(REPO)
        return self.job(m.Update("chat"), point).state == "done"

    def rollback(self, point: Point | None) -> None:
        self.job(m.Rollback("chat"), point)

    def _newest_ended(self) -> JobView | None:
        with self.asked() as connection:
            newest = connection.ask(m.ListJobs(1), m.Jobs).jobs[0]
        return newest if newest.ended is not None else None
