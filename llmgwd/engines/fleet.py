"""The fleet: every replica, started, watched, restarted and stopped."""

import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
import anyio.abc
import httpx2

from llmgwd import process
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines import probe
from llmgwd.engines.ports import free_port
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import command
from llmgwd.protocol.states import ReplicaState

HOST = "127.0.0.1"
STOP_GRACE_S = 10.0
FIRST_ANSWER_TIMEOUT_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_S = 60.0
"""A replica that served this long has its pauses start anew."""
KEPT_LOGS = 100

log = logging.getLogger(__name__)


class Fleet:
    """Starts replicas and keeps them running until they are stopped. `changed` is called when one comes or goes."""

    def __init__(
        self, logs: Path, tasks: anyio.abc.TaskGroup, changed: Callable[[], None], env: Mapping[str, str]
    ) -> None:
        """`env` is what every replica's environment has besides the daemon's own."""
        self._logs = logs
        self._tasks = tasks
        self._changed = changed
        self._env = env
        self._replicas: dict[str, Replica] = {}
        self._change = anyio.Event()

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def of(self, owner: str) -> list[Replica]:
        """The replicas of one catalog row, in the order they were started."""
        return [replica for replica in self._replicas.values() if replica.owner == owner]

    def ready(self, owner: str) -> list[Replica]:
        return [replica for replica in self.of(owner) if replica.state is ReplicaState.READY]

    def start(self, spec: ReplicaSpec, *, keep_trying: bool = False) -> Replica:
        """Starts a replica and returns at once; `ensure_ready` waits for it.

        A first start that fails is final unless `keep_trying`; one that was ready is restarted whenever it ends.
        """
        name = re.sub(r"[^A-Za-z0-9.-]", "_", spec.model)
        replica_id = f"{name}-{secrets.token_hex(3)}"
        port = free_port(HOST, {each.port for each in self._replicas.values()})
        replica = Replica(replica_id, spec.model, spec, HOST, port, self._logs / f"{replica_id}.log")
        self._replicas[replica_id] = replica
        _remove_old_logs(self._logs, {each.log for each in self._replicas.values()})
        self._tasks.start_soon(self._keep, replica, keep_trying)
        return replica

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
        if replica.process is not None:
            raise LlmgwError("not_ended", f"{replica.id} does not end: pid {replica.pid}", hint=_see(replica))
        self._replicas.pop(replica.id, None)
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

    async def _keep(self, replica: Replica, keep_trying: bool) -> None:
        """The replica's whole life. Whatever happens, its process is ended when this returns."""
        try:
            with replica.scope:
                await self._keep_up(replica, keep_trying)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(replica)
            if replica.failure is None:
                replica.failure = LlmgwError("stopped", f"{replica.id} was stopped")
            replica.ended.set()
            self._announce()

    async def _keep_up(self, replica: Replica, keep_trying: bool) -> None:
        pause_s = FIRST_PAUSE_S
        while not replica.is_leaving:
            since = anyio.current_time()
            try:
                await self._bring_up(replica)
                keep_trying = True
                since = anyio.current_time()
                await self._until_it_ends(replica)
            except LlmgwError as error:
                await self._end(replica)
                replica.detail = error.message
                log.warning("replica failed id=%s why=%s", replica.id, error.message)
                if not keep_trying:
                    replica.failure = error
                self._set(replica, ReplicaState.FAILED)
                if not keep_trying:
                    return
            if anyio.current_time() - since > STEADY_S:
                pause_s = FIRST_PAUSE_S
            await anyio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            self._set(replica, ReplicaState.STARTING)

    async def _bring_up(self, replica: Replica) -> None:
        """Starts the process and waits for its first answer. Raises LlmgwError, and nothing else."""
        try:
            await self._start(replica)
        except LlmgwError:
            raise
        except Exception as error:
            log.exception("replica failed unexpectedly id=%s", replica.id)
            raise LlmgwError("unexpected", f"{type(error).__name__}: {error}", hint="see the daemon's log") from error

    async def _start(self, replica: Replica) -> None:
        spec = replica.spec
        values = {
            "path": os.fspath(spec.path),
            "name": spec.served_name,
            "host": replica.host,
            "port": str(replica.port),
            "replica": replica.id,
            "revision": spec.origin.revision or "",
        }
        argv = command(spec.engine, spec.engine_args, values)
        try:
            # Cancelled in the middle, there would be a process that nobody knows.
            with anyio.CancelScope(shield=True):
                started = await process.spawn(argv, replica.log, {**spec.engine.env, **self._env})
                replica.process, replica.identity = started, process.identity(started.pid)
        except OSError as error:
            raise LlmgwError("engine_missing", f"{argv[0]} cannot be started: {error.strerror}") from error
        with anyio.move_on_after(spec.engine.ready_timeout_s):
            async with probe.client(replica.address) as engine:
                await self._until_healthy(replica, engine)
                await probe.complete(engine, spec.served_name, 1, FIRST_ANSWER_TIMEOUT_S)
            self._check_alive(replica)
            replica.detail = ""
            if not replica.is_leaving:
                self._set(replica, ReplicaState.READY)
            log.info("replica ready id=%s pid=%d address=%s", replica.id, started.pid, replica.address)
            return
        raise LlmgwError(
            "not_ready", f"{replica.id} was not ready within {spec.engine.ready_timeout_s:g} s", hint=_see(replica)
        )

    async def _until_healthy(self, replica: Replica, engine: httpx2.AsyncClient) -> None:
        while not await probe.is_healthy(engine, replica.spec.engine.health):
            self._check_alive(replica)
            await anyio.sleep(0.1)
        self._check_alive(replica)

    def _check_alive(self, replica: Replica) -> None:
        assert replica.process is not None
        if replica.process.returncode is not None:
            said = process.last_words(replica.log)
            raise LlmgwError(
                "engine_ended",
                f"the engine ended with status {replica.process.returncode} before it was ready: {said}",
                hint=_see(replica),
            )

    async def _until_it_ends(self, replica: Replica) -> None:
        """Raises LlmgwError when its process has ended by itself."""
        assert replica.process is not None
        status = await replica.process.wait()
        said = process.last_words(replica.log)
        raise LlmgwError("engine_ended", f"the engine ended with status {status}: {said}", hint=_see(replica))

    async def _end(self, replica: Replica) -> None:
        """Ends what is left of the process group; it stays the replica's when it does not end."""
        if replica.process is None:
            return
        if not await process.end(replica.process.pid, replica.identity, STOP_GRACE_S):
            log.error("process does not end id=%s pid=%d", replica.id, replica.process.pid)
            return
        with anyio.move_on_after(process.KILL_WAIT_S):
            await replica.process.wait()
        replica.process = replica.identity = None

    def _set(self, replica: Replica, state: ReplicaState) -> None:
        if replica.is_leaving and state in (ReplicaState.STARTING, ReplicaState.FAILED):
            state = ReplicaState.DRAINING
        replica.state = state
        self._announce()

    def _announce(self) -> None:
        self._change.set()
        self._change = anyio.Event()
        self._changed()


def _see(replica: Replica) -> str:
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
