"""The fleet: every replica, started or found running, watched, restarted and stopped."""

import logging
import re
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import httpx2

from llmgwd import process
from llmgwd.domain.catalog import CANARY_SUFFIX
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.processes import ProcessKind, ProcessRecords
from llmgwd.domain.urls import Place, place_of
from llmgwd.engines import probe
from llmgwd.engines.gpus import Gpus
from llmgwd.engines.identity import is_itself
from llmgwd.engines.key_file import read_key
from llmgwd.engines.placement import Placement
from llmgwd.engines.ports import free_port, is_taken
from llmgwd.engines.pulse import until_hung
from llmgwd.engines.release import end_on_gpus
from llmgwd.engines.replica import Replica, ReplicaSpec, read, written
from llmgwd.engines.restarts import CRASH_LOOP_FAILURES, failures_in_a_row, pause_s
from llmgwd.engines.templates import Engine
from llmgwd.protocol.states import ReplicaState

HOST = "127.0.0.1"
KEPT_LOGS = 100
LAST_LINES = 5
"""Of its log, shown with a replica that fails."""

log = logging.getLogger(__name__)


class Fleet:
    """Starts replicas and keeps them running until they are stopped.

    `changed` is called when one comes or goes; `heard_at` gives when, on the loop's clock, the gateway last had
    anything from a replica. When `tasks` is torn down they run on: who does that ends them, or leaves them to the next
    life of the daemon.
    """

    def __init__(
        self,
        state: Path,
        tasks: anyio.abc.TaskGroup,
        records: ProcessRecords,
        placement: Placement,
        changed: Callable[[], None],
        heard_at: Callable[[str], float],
        gpus: Gpus | None = None,
    ) -> None:
        self._state = state
        self._logs = state / "logs"
        self._tasks = tasks
        self._records = records
        self.placement = placement
        self._changed = changed
        self._heard_at = heard_at
        self._gpus = gpus
        self._replicas: dict[str, Replica] = {}
        self._change = anyio.Event()

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def of(self, owner: str) -> list[Replica]:
        """The replicas of one catalog row, in the order they were started."""
        return [replica for replica in self._replicas.values() if replica.owner == owner]

    def ready(self, owner: str) -> list[Replica]:
        return [replica for replica in self.of(owner) if replica.state is ReplicaState.READY]

    def new_id(self, spec: ReplicaSpec) -> str:
        """For a replica that is to be written of before it is started."""
        return f"{re.sub(r'[^A-Za-z0-9.-]', '_', spec.model)}-{secrets.token_hex(3)}"

    def start(
        self, spec: ReplicaSpec, *, keep_trying: bool = False, replica_id: str | None = None, serves: bool = False
    ) -> Replica:
        """Starts a replica and returns at once; `ensure_ready` waits for it.

        A first start that fails is final unless `keep_trying`; one that was ready is restarted whenever it ends.
        `serves`: it is one that somebody else runs and that served when the last life of the daemon ended. It is ready
        at once, and the first probe says whether that still holds.
        """
        replica_id = replica_id or self.new_id(spec)
        place = self._place(spec)
        replica = Replica(
            replica_id, spec.model, spec, place.host, place.port, self._logs / f"{replica_id}.log", place.tls
        )
        replica.keep_trying = keep_trying
        if serves and replica.is_external:
            self._take_for_ready(replica)
        self._begin(replica)
        _remove_old_logs(self._logs, {each.log for each in self._replicas.values()})
        return replica

    def _place(self, spec: ReplicaSpec) -> Place:
        """Where a new replica is to be: a free port here, or of the URLs that others serve the first without one."""
        if not spec.engine.is_external:
            return Place(HOST, self._free_port())
        places = [place_of(url) for url in spec.origin.urls]
        taken = {each.place for each in self.of(spec.model) if each.spec.origin == spec.origin and not each.is_leaving}
        return next((each for each in places if each not in taken), places[0])

    def _take_for_ready(self, replica: Replica) -> None:
        try:
            replica.key = read_key(replica.spec.origin.key_file)
        except LlmgwError as error:
            log.error("replica not ready id=%s why=%s", replica.id, error.message)
            return
        replica.state = ReplicaState.READY
        replica.was_ready = True

    async def adopt(self, engines: Collection[Engine]) -> list[Replica]:
        """Finds the replicas of an earlier life of the daemon that still run. Nothing is done to any before `take_up`.

        One that served stays ready, and is probed at once. A canary's gets nothing before it has answered (K3), nor
        does one that did not serve yet or does not listen. `engines` are those of the configuration.
        """
        for record in self._records.all(ProcessKind.REPLICA):
            replica, found = read(record, engines), process.find(record.pid, record.identity, self._mark(record.id))
            if replica is None or found is None:
                continue
            replica.process = found
            replica.keep_trying = replica.was_ready
            is_canarys = replica.owner.endswith(CANARY_SUFFIX)
            if replica.was_ready and not is_canarys and await is_itself(replica):
                replica.state = ReplicaState.READY
            await self.placement.adopt(replica)
            log.info("replica found running id=%s pid=%d state=%s", replica.id, found.pid, replica.state)
            self._replicas[replica.id] = replica
        return self.all()

    def take_up(self) -> None:
        """Goes on with what was adopted."""
        for replica in self.all():
            self._begin(replica)

    def _begin(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica
        self._tasks.start_soon(self._keep, replica)

    def _mark(self, replica_id: str) -> process.Mark:
        return process.Mark(self._state, replica_id)

    def _free_port(self) -> int:
        return free_port(HOST, {each.port for each in self._replicas.values()})

    async def ensure_ready(self, replica: Replica, within_s: float = float("inf")) -> None:
        """Waits until it answers requests. Raises LlmgwError when it does not come to that, or not in time."""
        with anyio.move_on_after(within_s):
            while replica.state is not ReplicaState.READY and replica.failure is None:
                await self._change.wait()
        if replica.failure is not None:
            raise replica.failure
        if replica.state is not ReplicaState.READY:
            why = f": {replica.detail}" if replica.detail else ""
            raise LlmgwError("not_ready", f"{replica.id} was not ready within {within_s:g} s{why}", hint=_see(replica))

    def give(self, replica: Replica, owner: str) -> None:
        """Makes a replica another row's, as it runs."""
        replica.owner = owner
        self._write_down(replica)

    def drain(self, replica: Replica) -> None:
        """Takes it out of what is ready, for good; it runs on until `stop`."""
        replica.is_leaving = True
        self._set(replica, ReplicaState.DRAINING)

    async def stop(self, replica: Replica) -> None:
        """Ends its process group and forgets it; safe to call again. Raises LlmgwError when it does not end."""
        replica.is_leaving = True
        replica.scope.cancel()
        with anyio.CancelScope(shield=True):
            await replica.ended.wait()
            # Its keeper has tried once, and nobody else does.
            async with replica.ending:
                await self._end(replica)
        if replica.process is not None:
            raise LlmgwError("not_ended", f"{replica.id} does not end: pid {replica.pid}", hint=_see(replica))
        self._replicas.pop(replica.id, None)
        self.placement.release(replica)
        self._set(replica, ReplicaState.STOPPED)

    async def stop_all(self) -> None:
        """As many of them as can be ended; what cannot is logged."""
        async with anyio.create_task_group() as tasks:
            for replica in self.all():
                tasks.start_soon(self._stop_or_say, replica)

    async def _stop_or_say(self, replica: Replica) -> None:
        try:
            await self.stop(replica)
        except LlmgwError as error:
            log.error("%s", error.message)

    async def _keep(self, replica: Replica) -> None:
        """The replica's whole life. When this returns its process is ended, unless the daemon itself is torn down."""
        try:
            with replica.scope:
                await self._keep_up(replica)
            with anyio.CancelScope(shield=True):
                await self._end(replica)
        finally:
            if replica.failure is None:
                replica.failure = LlmgwError("stopped", f"{replica.id} was stopped")
            replica.ended.set()
            self._announce()

    async def _keep_up(self, replica: Replica) -> None:
        while not replica.is_leaving:
            ready_at: float | None = None
            try:
                # One that was found serving is: its first probe says whether that still holds.
                is_found = replica.state is ReplicaState.READY
                if not is_found:
                    await self._bring_up(replica)
                ready_at = anyio.current_time()
                trouble = await self._trouble(replica, probe_at_once=is_found)
            except LlmgwError as error:
                trouble = error
            except Exception as error:
                log.exception("replica failed unexpectedly id=%s", replica.id)
                trouble = LlmgwError("unexpected", f"{type(error).__name__}: {error}", hint="see the daemon's log")
            served_s = 0.0 if ready_at is None else anyio.current_time() - ready_at
            replica.failures = failures_in_a_row(replica.failures, served_s)
            await self._fail(replica, trouble)
            if replica.failure is not None:
                return
            await anyio.sleep(pause_s(replica.failures))
            if replica.state is not ReplicaState.CRASH_LOOP and not replica.is_external:
                self._set(replica, ReplicaState.STARTING)

    async def _trouble(self, replica: Replica, *, probe_at_once: bool) -> LlmgwError:
        """Why it serves no more, once that is so."""
        found: list[LlmgwError] = []
        async with anyio.create_task_group() as tasks:

            async def ends() -> None:
                found.append(await self._until_it_ends(replica))
                tasks.cancel_scope.cancel()

            async def hangs() -> None:
                found.append(await until_hung(replica, self._heard_at, at_once=probe_at_once))
                tasks.cancel_scope.cancel()

            if not replica.is_external:
                tasks.start_soon(ends)
            tasks.start_soon(hangs)
        return found[0]

    async def _fail(self, replica: Replica, error: LlmgwError) -> None:
        """Takes it out of the routes, then ends what is left of it."""
        replica.said = process.last_lines(replica.log, LAST_LINES)
        replica.detail = error.message
        if replica.keep_trying:
            times = f"failed {replica.failures} times in a row, " if replica.failures > 1 else ""
            again = "is asked again" if replica.is_external else "starts again"
            replica.detail += f"; {times}{again} in {pause_s(replica.failures):g} s"
        log.warning("replica failed id=%s why=%s", replica.id, replica.detail)
        is_loop = replica.failures >= CRASH_LOOP_FAILURES and not replica.is_external
        self._set(replica, ReplicaState.CRASH_LOOP if is_loop else ReplicaState.FAILED)
        await self._end(replica)
        if not replica.keep_trying:
            if replica.process is None:
                self.placement.release(replica)
            replica.failure = error
            self._announce()

    async def _bring_up(self, replica: Replica) -> None:
        """Starts the process, unless it runs or is somebody else's; waits for its first answer. Raises LlmgwError."""
        if replica.is_external:
            replica.key = read_key(replica.spec.origin.key_file)
        elif replica.process is None:
            await self.placement.place(replica, insists=replica.keep_trying)
            self._spawn(replica)
        await self._until_ready(replica)

    def _spawn(self, replica: Replica) -> None:
        spec = replica.spec
        if is_taken(replica.host, replica.port):
            replica.port = self._free_port()
        argv = spec.command(replica.host, str(replica.port), replica.id, len(replica.gpus))
        try:
            env = {**spec.engine.env, **self.placement.env(replica)}
            replica.process = process.spawn(argv, replica.log, self._mark(replica.id), env)
        except OSError as error:
            raise LlmgwError("engine_missing", f"{argv[0]} cannot be started: {error.strerror}") from error
        self._write_down(replica)

    async def _until_ready(self, replica: Replica) -> None:
        spec = replica.spec
        with anyio.move_on_after(spec.engine.ready_timeout_s):
            async with probe.client(replica.address, replica.key) as engine:
                if spec.engine.health:
                    await self._until_healthy(replica, engine)
                await self._first_answer(replica, engine)
            self._check_alive(replica)
            if not await is_itself(replica):
                raise LlmgwError("port_taken", f"something else answers at {replica.address}", hint=_see(replica))
            await self.placement.note(replica)
            replica.detail, replica.said = "", ()
            replica.keep_trying = replica.was_ready = True
            self._write_down(replica)
            if not replica.is_leaving:
                self._set(replica, ReplicaState.READY)
            log.info("replica ready id=%s pid=%s address=%s", replica.id, replica.pid or "-", replica.address)
            return
        raise LlmgwError(
            "not_ready", f"{replica.id} was not ready within {spec.engine.ready_timeout_s:g} s", hint=_see(replica)
        )

    async def _first_answer(self, replica: Replica, engine: httpx2.AsyncClient) -> None:
        spec = replica.spec
        try:
            await probe.complete(engine, spec.served_name, 1, spec.engine.first_answer_s)
        except LlmgwError as error:
            raise LlmgwError(error.code, error.message, hint=_see(replica)) from error

    async def _until_healthy(self, replica: Replica, engine: httpx2.AsyncClient) -> None:
        while not await probe.is_healthy(engine, replica.spec.engine.health):
            self._check_alive(replica)
            await anyio.sleep(0.1)
        self._check_alive(replica)

    def _check_alive(self, replica: Replica) -> None:
        if replica.process is not None and not replica.process.is_running:
            raise self._ended(replica, replica.process.returncode, " before it was ready")

    async def _until_it_ends(self, replica: Replica) -> LlmgwError:
        assert replica.process is not None
        return self._ended(replica, await replica.process.wait(), "")

    def _ended(self, replica: Replica, status: int | None, when: str) -> LlmgwError:
        """`status` is None for a process that an earlier life of the daemon started."""
        how = "ended" if status is None else f"ended with status {status}"
        return LlmgwError(
            "engine_ended", f"the engine {how}{when}: {process.last_words(replica.log)}", hint=_see(replica)
        )

    async def _end(self, replica: Replica) -> None:
        """Ends what is left of the process group; it stays the replica's when it does not end."""
        if replica.process is None:
            return
        grace_s = replica.spec.engine.stop_grace_s
        if self._gpus is None:
            has_ended = await replica.process.end(grace_s)
        else:
            has_ended = await end_on_gpus(self._gpus, replica.id, replica.process, grace_s)
        if not has_ended:
            log.error("process does not end id=%s pid=%d", replica.id, replica.process.pid)
            return
        replica.process = None
        self._records.forget(replica.id)

    def _write_down(self, replica: Replica) -> None:
        if replica.process is not None:
            self._records.put(written(replica))

    def _set(self, replica: Replica, state: ReplicaState) -> None:
        if replica.is_leaving and state is not ReplicaState.STOPPED:
            state = ReplicaState.DRAINING
        replica.state = state
        self._announce()

    def _announce(self) -> None:
        self._change.set()
        self._change = anyio.Event()
        self._changed()


def _see(replica: Replica) -> str:
    if replica.is_external:
        return f"ask it yourself at {replica.address}; --served-name says what it is called there"
    return f"its log is {replica.log}"


def _remove_old_logs(folder: Path, in_use: set[Path]) -> None:
    """Leaves the newest KEPT_LOGS that no replica writes to."""
    unused = [each for each in folder.glob("*.log") if each not in in_use and each.name != "gateway.log"]
    for path in sorted(unused, key=_changed_at, reverse=True)[KEPT_LOGS:]:
        path.unlink(missing_ok=True)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
