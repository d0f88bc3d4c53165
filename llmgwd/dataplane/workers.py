"""The gateway's worker processes: started or found running, replaced when they end, finished in order."""

import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from llmgwd import process
from llmgwd.config import GatewaySettings
from llmgwd.dataplane import listeners
from llmgwd.dataplane.link import Link
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.processes import ProcessKind, ProcessRecord, ProcessRecords
from llmgwd.process import Process
from llmgwd.protocol.link import LINK_VERSION

log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
END_GRACE_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
HAND_OVER_S = 5.0
"""How long a worker of an earlier life may take to say hello before others listen anew in its place."""
REPLACED_WITHIN_S = 600.0
"""How long the requests of a worker may go on that others have replaced: nobody waits for its end."""


class About(msgspec.Struct, frozen=True):
    """What is written down of a worker: it is as good as a new one when all but its number is the same."""

    number: int
    of: int
    """How many there are."""
    listen: str
    options: tuple[str, ...]
    version: str
    """Of llmgw."""
    link: int = LINK_VERSION


@dataclass
class Worker:
    """One running worker. `id` is unique for ever."""

    id: str
    about: About
    process: Process

    @property
    def pid(self) -> int:
        return self.process.pid


class Workers:
    """Keeps `settings.workers` processes running on one address.

    Each has a place, and each place a listening socket that this daemon holds too: a client that connects while a
    worker is replaced waits in its queue for the next one.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        link: Path,
        state: Path,
        records: ProcessRecords,
        version: str,
        ended: Callable[[str, int], None],
    ) -> None:
        """`ended` is told the id and pid of a worker that was seen to have ended."""
        self._settings = settings
        self._link = link
        self._state = state
        self._log = state / "logs" / "gateway.log"
        self._records = records
        self._version = version
        self._ended = ended
        self._places: dict[int, Worker] = {}
        """By number, those that run and belong here."""
        self._replaced: list[Worker] = []
        """Those of an earlier life that are otherwise than they should be."""
        self._sockets: dict[int, list[socket.socket]] = {}
        """By number, what a worker in that place listens on."""
        self._handed_in: set[int] = set()
        """Pids of those whose sockets were taken."""
        self._is_over = False

    @property
    def pids(self) -> set[int]:
        """Of those that follow the routes."""
        following = [each for each in self._replaced if each.about.link == LINK_VERSION]
        return {each.pid for each in (*self._places.values(), *following)}

    @property
    def replaced_pids(self) -> set[int]:
        return {each.pid for each in self._replaced}

    def adopt(self, link: Link) -> list[Worker]:
        """Finds the workers of an earlier life of the daemon that still run."""
        for record in self._records.all(ProcessKind.WORKER):
            about, found = _read(record), process.find(record.pid, record.identity, self._mark(record.id))
            if about is None or found is None:
                continue
            worker = Worker(record.id, about, found)
            fits = about == self._about(about.number) and about.number not in self._places
            if fits:
                self._places[about.number] = worker
            else:
                self._replaced.append(worker)
            link.resume(worker.id, worker.pid, record.reports, follows=about.link == LINK_VERSION)
            log.info("gateway worker found running pid=%d fits=%s", worker.pid, fits)
        return [*self._places.values(), *self._replaced]

    async def clear_address(self, keep: Collection[str]) -> None:
        """Ends what listens there and only its mark tells to be this state folder's, but the children in `keep`.

        A database that was put in the place of another knows no worker of that one. Raises LlmgwError, having ended
        nothing, when anybody else listens there.
        """
        address = self._settings.listen
        if self._places or any(each.about.listen == str(address) for each in self._replaced):
            return
        try:
            listeners.check_free(address)
        except LlmgwError:
            marked = [each for each in process.marked(self._state) if each.child not in keep]
            unknown = [each for each in marked if process.listens(each.pid, address.port)]
            if not unknown:
                raise
            for each in unknown:
                left = process.find(each.pid, each.identity, self._mark(each.child))
                if left is not None:
                    log.info("ending a gateway worker that is not written down pid=%d", each.pid)
                    await left.end(END_GRACE_S)
            listeners.check_free(address)

    def take_listeners(self, pid: int, descriptors: list[int]) -> None:
        """A worker hands in what it listens on; kept where this daemon does not have it yet."""
        number = None if pid in self._handed_in or self._is_over else self._place_for(pid)
        if number is None:
            for each in descriptors:
                os.close(each)
            return
        self._handed_in.add(pid)
        self._sockets.setdefault(number, []).extend(socket.socket(fileno=each) for each in descriptors)

    def _place_for(self, pid: int) -> int | None:
        """Whose sockets that worker's are to be; None when nobody would listen on them."""
        for number, each in self._places.items():
            if each.pid == pid:
                return None if number in self._sockets else number
        for each in self._replaced:
            if each.pid == pid and each.about.listen == str(self._settings.listen):
                number = each.about.number % self._settings.workers
                return None if number in self._places else number
        return None

    def start(self, tasks: anyio.abc.TaskGroup, link: Link) -> None:
        for number in self._places:
            tasks.start_soon(self._keep, number)
        tasks.start_soon(self._fill, tasks, link)

    def close_address(self) -> None:
        """From now on clients are refused once the workers listen no more."""
        self._is_over = True
        for each in self._sockets.values():
            for listener in each:
                listener.close()
        self._sockets.clear()

    async def wait_ended(self, within_s: float, told: Collection[int]) -> None:
        """Waits for workers to finish, as those of the pids `told` were told to; ends those that have not in time."""
        self.close_address()
        for worker in (*self._places.values(), *self._replaced):
            if worker.pid not in told:
                worker.process.terminate()
        with anyio.move_on_after(within_s):
            for worker in (*self._places.values(), *self._replaced):
                await worker.process.wait()
        for worker in (*self._places.values(), *self._replaced):
            await self._end(worker)

    async def end(self, pid: int) -> None:
        """Ends one worker; unless the gateway finishes, another takes its place."""
        for worker in (*self._places.values(), *self._replaced):
            if worker.pid == pid:
                await self._end(worker)

    async def _fill(self, tasks: anyio.abc.TaskGroup, link: Link) -> None:
        """Starts a worker in each free place, on the sockets of those it replaces; then those finish."""
        replaced = list(self._replaced)
        same_link = {each.pid for each in replaced if each.about.link == LINK_VERSION}
        with anyio.move_on_after(HAND_OVER_S):
            await link.said_hello(same_link)
        for number in range(self._settings.workers):
            if number not in self._places:
                tasks.start_soon(self._keep, number)
        if replaced:
            await link.connected(self._settings.workers, self.replaced_pids)
            for worker in replaced:
                tasks.start_soon(self._finish_replaced, worker, link)

    async def _finish_replaced(self, worker: Worker, link: Link) -> None:
        log.info("gateway worker replaced pid=%d", worker.pid)
        if not await link.finish_replaced(worker.pid, REPLACED_WITHIN_S):
            worker.process.terminate()
        with anyio.move_on_after(REPLACED_WITHIN_S + END_GRACE_S):
            await worker.process.wait()
        await self._end(worker)
        self._replaced.remove(worker)

    async def _keep(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_over:
            started = anyio.current_time()
            try:
                why = await self._run(number)
            except OSError as error:
                why = str(error)
            except Exception as error:
                log.exception("gateway worker failed unexpectedly number=%d", number)
                why = str(error)
            if self._is_over:
                return
            log.error("gateway worker ended number=%d why=%s log=%s", number, why, self._log)
            pause_s = FIRST_PAUSE_S if anyio.current_time() - started > 60 else min(LONGEST_PAUSE_S, 2 * pause_s)
            await anyio.sleep(pause_s)

    async def _run(self, number: int) -> str:
        """Runs one worker, or the one that runs, to its end; how it ended. Raises OSError."""
        worker = self._places.get(number) or self._spawn(number)
        status = await worker.process.wait()
        # Gone from here at once: nobody is to wait for it to follow new routes.
        self._places.pop(number, None)
        await self._end(worker)
        return "" if status is None else f"status {status}"

    def _spawn(self, number: int) -> Worker:
        if number not in self._sockets:
            self._sockets[number] = [listeners.listen(self._settings.listen)]
        sockets = [each.fileno() for each in self._sockets[number]]
        about, name = self._about(number), f"w{number}-{secrets.token_hex(4)}"
        argv = [sys.executable, "-m", "llmgwd.gateway.worker", "--link", str(self._link), "--worker-id", name]
        argv += [f"--listen-fd={each}" for each in sockets]
        started = process.spawn([*argv, *about.options], self._log, self._mark(name), fds=sockets)
        worker = self._places[number] = Worker(name, about, started)
        about_it = msgspec.json.encode(about)
        self._records.put(ProcessRecord(name, ProcessKind.WORKER, started.pid, started.identity, about_it))
        return worker

    async def _end(self, worker: Worker) -> None:
        if await worker.process.end(END_GRACE_S):
            self._handed_in.discard(worker.pid)
            self._ended(worker.id, worker.pid)
            self._records.forget(worker.id)
        else:
            log.error("gateway worker does not end pid=%d", worker.pid)

    def _about(self, number: int) -> About:
        """What a worker in that place is to be."""
        settings = self._settings
        options = {
            "--max-body": int(settings.max_body),
            "--max-connections": settings.max_connections,
            "--max-in-flight": settings.max_in_flight,
            "--queue": settings.queue,
        }
        spelled = tuple(f"{name}={value}" for name, value in options.items())
        return About(number, settings.workers, str(settings.listen), spelled, self._version)

    def _mark(self, worker: str) -> process.Mark:
        return process.Mark(self._state, worker)


def _read(record: ProcessRecord) -> About | None:
    """None for what another version wrote."""
    try:
        return msgspec.json.decode(record.about, type=About)
    except msgspec.MsgspecError:
        return None
