"""The fleet: every replica, started, watched, restarted and stopped."""

import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

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

log = logging.getLogger(__name__)


class Ledger(Protocol):
    """Where running processes are written down, so that a start after a crash finds them."""

    def started(self, pid: int, identity: str, what: str) -> None: ...
    def ended(self, pid: int) -> None: ...


class Fleet:
    """Starts replicas and keeps them running until they are stopped. `changed` is called when one comes or goes."""

    def __init__(
        self,
        logs: Path,
        ledger: Ledger,
        tasks: anyio.abc.TaskGroup,
        changed: Callable[[], None],
        env: Mapping[str, str],
    ) -> None:
        """`env` is what every replica's environment has besides the daemon's own."""
        self._env = env
        self._logs = logs
        self._ledger = ledger
        self._tasks = tasks
        self._changed = changed
        self._replicas: dict[str, Replica] = {}

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
        self._tasks.start_soon(self._keep, replica, keep_trying)
        return replica

    async def ensure_ready(self, replica: Replica) -> None:
        """Waits until it has answered a real request. Raises LlmgwError when it does not come to that."""
        await replica.settled.wait()
        if replica.failure is not None:
            raise replica.failure

    def give(self, replica: Replica, owner: str) -> None:
        """Makes a replica another row's, as it runs."""
        replica.owner = owner

    def drain(self, replica: Replica) -> None:
        """Takes it out of what is ready; it runs on until `stop`."""
        replica.state = ReplicaState.DRAINING

    async def stop(self, replica: Replica) -> None:
        """Ends its process group and forgets it. Safe to call again."""
        self._replicas.pop(replica.id, None)
        replica.scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._end(replica)
        replica.state = ReplicaState.STOPPED
        if replica.failure is None:
            replica.failure = LlmgwError("stopped", f"{replica.id} was stopped")
        replica.settled.set()
        self._changed()

    async def stop_all(self) -> None:
        async with anyio.create_task_group() as tasks:
            for replica in self.all():
                tasks.start_soon(self.stop, replica)

    async def _keep(self, replica: Replica, keep_trying: bool) -> None:
        pause_s = FIRST_PAUSE_S
        with replica.scope:
            while True:
                since = time.monotonic()
                try:
                    await self._bring_up(replica)
                except LlmgwError as error:
                    await self._end(replica)
                    self._fell(replica, error.message)
                    if not (keep_trying or replica.settled.is_set()):
                        replica.failure = error
                        replica.settled.set()
                        return
                else:
                    replica.settled.set()
                    self._changed()
                    since = time.monotonic()
                    await self._serve(replica)
                if time.monotonic() - since > STEADY_S:
                    pause_s = FIRST_PAUSE_S
                await anyio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                replica.state = ReplicaState.STARTING

    async def _bring_up(self, replica: Replica) -> None:
        """Starts the process and waits for its first answer. Raises LlmgwError, and nothing else."""
        try:
            await self._start(replica)
        except (LlmgwError, OSError) as error:
            raise error if isinstance(error, LlmgwError) else LlmgwError("not_started", str(error)) from error
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
            replica.process = await process.spawn(argv, replica.log, {**spec.engine.env, **self._env})
        except OSError as error:
            raise LlmgwError("engine_missing", f"{argv[0]} cannot be started: {error.strerror}") from error
        replica.pid = replica.process.pid
        replica.identity = process.identity(replica.pid)
        if replica.identity is not None:
            self._ledger.started(replica.pid, replica.identity, replica.id)
        with anyio.move_on_after(spec.engine.ready_timeout_s):
            async with probe.client(replica.address) as engine:
                await self._until_healthy(replica, engine)
                await probe.complete(engine, spec.served_name, 1, FIRST_ANSWER_TIMEOUT_S)
            replica.state, replica.detail = ReplicaState.READY, ""
            log.info("replica ready id=%s pid=%d address=%s", replica.id, replica.pid, replica.address)
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

    async def _serve(self, replica: Replica) -> None:
        """Returns when its process has ended by itself."""
        assert replica.process is not None
        status = await replica.process.wait()
        await self._end(replica)
        self._fell(replica, f"the engine ended with status {status}: {process.last_words(replica.log)}")

    def _fell(self, replica: Replica, why: str) -> None:
        replica.state, replica.detail = ReplicaState.FAILED, why
        log.warning("replica failed id=%s why=%s", replica.id, why)
        self._changed()

    async def _end(self, replica: Replica) -> None:
        """Ends what is left of the process group."""
        if replica.pid is None:
            return
        await process.end(replica.pid, replica.identity, STOP_GRACE_S)
        if replica.process is not None:
            with anyio.move_on_after(process.KILL_WAIT_S):
                await replica.process.wait()
        self._ledger.ended(replica.pid)
        replica.pid = replica.identity = replica.process = None


def _see(replica: Replica) -> str:
    return f"its log is {replica.log}"
