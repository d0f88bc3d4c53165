"""The daemon: its parts brought up in order, reloaded and taken down."""

import fcntl
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import anyio
import anyio.abc

from llmgwd import process
from llmgwd.admin import admin_app, serve_admin
from llmgwd.config import Settings, read_settings
from llmgwd.control.server import clear
from llmgwd.dataplane.dataplane import read_keys
from llmgwd.dataplane.workers import START_TIMEOUT_S
from llmgwd.declare import (
    check_engines_kept,
    declare,
    declared_models,
    engines_of,
    serve_declared,
    write_down,
)
from llmgwd.domain.catalog import Model
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.placement import MachineReader
from llmgwd.jobs.clean_up import keep_clean
from llmgwd.jobs.runner import Runner
from llmgwd.jobs.services import Services
from llmgwd.jobs.upkeep import go_on
from llmgwd.leftovers import end_left
from llmgwd.parts import Parts, hub, wire
from llmgwd.store.backup import keep_backed_up
from llmgwd.store.database import StoreError
from llmgwd.store.patient import PatientProcesses
from llmgwd.updates import keep_checking
from llmgwd.watch import finish_removals, watch

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
LAST_SAVE_S = 5.0
"""How long an end waits for a database that takes nothing, before what was counted is given up."""
SAVE_AGAIN_S = 0.2
KEEP_ON_PAUSE_S = 1.0


class Daemon:
    """One life of llmgwd on one state folder."""

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        socket: Path,
        state: Path,
        *,
        leaves_running: bool = False,
        runner: type[Runner] = Runner,
        machine: MachineReader | None = None,
    ) -> None:
        """`leaves_running`: gateway and replicas outlive this life, and the next goes on with them.

        `machine`: what replicas are placed on; this one when None.
        """
        self.leaves_running = leaves_running
        self._settings = settings
        self._runner_type = runner
        self._machine = machine
        self._config = config
        self._socket = socket
        self._state = state
        self._up: Parts | None = None
        """What there is to stop."""
        self._owns_state = False
        """Whether what runs from this state folder is no other daemon's."""
        self._records: PatientProcesses | None = None
        self._found: set[str] | None = None
        """Ids of the processes found running; None before it is clear that the start is not refused."""
        self._starting = anyio.CancelScope()
        self._start_is_over = anyio.Event()
        self._is_up = False
        """Whether a start came to its end."""
        self._leaves: bool | None = None
        """Whether processes are to serve on, as the signal to end says; None when there was none."""
        self._lock: IO[str]
        self._tasks: anyio.abc.TaskGroup
        self._reloading = anyio.Lock()

    @property
    def where(self) -> str:
        """Where it is reached, for the log."""
        return f"gateway={self._settings.gateway.listen} socket={self._socket} state={self._state}"

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Runs until cancelled; started once the gateway answers. Raises LlmgwError when it cannot start."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                with self._starting:
                    # A reload that is asked for meanwhile comes after it.
                    async with self._reloading:
                        await self._start(tasks)
            finally:
                self._start_is_over.set()
            if self._starting.cancel_called:
                # What has been started goes on until `stop` is through with it.
                await anyio.sleep_forever()
            self._is_up = True
            task_status.started()

    async def _start(self, tasks: anyio.abc.TaskGroup) -> None:
        """In this order: what can be refused, what is found, what is ended, what is started."""
        clear(self._socket)
        with _told_of_files():
            self._lock = _lock(self._state)
            self._owns_state = True
            parts = wire(self._settings, self._socket, self._state, tasks, self._runner_type, self._machine)
            self._records = parts.records
            await parts.control.listen()
            tasks.start_soon(parts.control.serve)
            found = await self._find(parts)
        await end_left(self._state, parts.records, STOP_GRACE_S, keep=found)
        self._begin_upkeep(parts)
        await self._declare(parts.services, parts.wanted)
        await self._wait_for_gateway(parts)
        self._begin_jobs(parts)
        tasks.start_soon(serve_admin, parts.admin_socket, admin_app(parts.answers.status, parts.metrics.page))
        parts.control.open()

    async def _find(self, parts: Parts) -> set[str]:
        """The ids of what runs from an earlier life. Afterwards nothing refuses the start any more."""
        services = parts.services
        found = {each.id for each in parts.workers.adopt(parts.link)}
        found |= {each.id for each in await services.fleet.adopt(services.engines.values())}
        await parts.workers.clear_address(found)
        await self._tasks.start(parts.link.serve)
        self._found = found
        self._up = parts
        services.fleet.take_up()
        return found

    def _begin_upkeep(self, parts: Parts) -> None:
        """Begins what goes on for as long as the daemon lives."""
        services = parts.services
        parts.workers.start(self._tasks, parts.link)
        for loop in (
            parts.records.keep_written,
            services.dataplane.fulfil_wishes,
            services.dataplane.keep_saved,
            parts.notifier.deliver,
            partial(keep_clean, services),
            partial(keep_backed_up, parts.database),
        ):
            self._tasks.start_soon(_keep_on, loop)
        go_on(services, self._tasks)

    def _begin_jobs(self, parts: Parts) -> None:
        """Begins what changes models: they are served, and the gateway follows."""
        parts.runner.resume()
        self._tasks.start_soon(finish_removals, parts.services)
        self._tasks.start_soon(_keep_on, partial(watch, parts.services, parts.verbs))
        self._tasks.start_soon(_keep_on, partial(keep_checking, parts.services))

    async def _declare(self, services: Services, wanted: list[Model]) -> None:
        try:
            await declare(services, wanted, self._tasks)
        except StoreError as error:
            log.error("declared models are served as they were before why=%s", error.message)
            await declare(services, [each for each in services.store.models.all() if each.declared], self._tasks)

    async def reload(self) -> None:
        """Reads the configuration again and applies it; one that cannot be applied whole changes nothing."""
        async with self._reloading:
            up = self._up
            if up is None or self._leaves is not None:
                return
            try:
                settings = read_settings(self._config)
                _check_reloadable(self._settings, settings)
                engines = engines_of(settings)
                others = [each for each in up.services.store.models.all() if not each.declared]
                check_engines_kept(engines, others)
                wanted = declared_models(settings, engines, others)
                keys = read_keys(settings.gateway.api_keys_file)
                source = hub(settings)
                gone = write_down(up.services, wanted)
            except LlmgwError as error:
                log.error("configuration not reloaded, nothing changed: %s", error.message)
                return
            except Exception:
                # A file that a person may have written in any way must not end what serves.
                log.exception("configuration not reloaded, nothing changed")
                return
            self._settings = up.services.settings = settings
            up.services.engines = engines
            up.services.hub = source
            up.services.dataplane.key_hashes = keys
            await serve_declared(up.services, wanted, gone, self._tasks)
            log.info("configuration reloaded path=%s", self._config)

    async def stop(self) -> None:
        """Takes no more verbs and leaves jobs for the next start, drains, then ends every process."""
        self._leaves = False
        up = await self._down()
        if up is not None:
            drain_s = self._settings.gateway.drain
            up.workers.close_address()
            told = {each.pid for each in up.link.workers}
            await up.link.finish(drain_s)
            await up.workers.wait_ended(drain_s + STOP_GRACE_S, told)
            await up.services.fleet.stop_all()
            await _save_last(up.services)

    async def leave(self) -> None:
        """Ends the daemon alone: jobs stop where they are; gateway and replicas serve on for the next life."""
        self._leaves = True
        up = await self._down()
        if up is not None:
            # What is taken after the samples are saved would be lost: workers keep it for the next life.
            up.link.close()
            await _save_last(up.services)

    async def _down(self) -> Parts | None:
        """Ends the start, if it goes on, and then all that begins anything; what there is to end after that."""
        self._starting.cancel()
        await self._start_is_over.wait()
        up, self._up = self._up, None
        if up is not None:
            up.services.stopping.set()
            up.control.close()
            await up.runner.stop()
        return up

    async def end_rest(self) -> None:
        """Ends what still runs from this state folder and is not to outlive the daemon, however far that came.

        A start that failed leaves what it found.
        """
        leaves = self.leaves_running if self._leaves is None else self._leaves
        has_failed_to_start = not self._is_up and self._leaves is None
        if leaves or not self._owns_state or (has_failed_to_start and self._found is None):
            return
        keep = self._found if has_failed_to_start and self._found is not None else ()
        if self._records is None:
            await process.end_marked(self._state, STOP_GRACE_S, keep)
        else:
            await end_left(self._state, self._records, STOP_GRACE_S, keep)

    async def _wait_for_gateway(self, parts: Parts) -> None:
        try:
            with anyio.fail_after(START_TIMEOUT_S):
                await parts.link.connected(self._settings.gateway.workers, parts.workers.replaced_pids)
        except TimeoutError:
            said = process.last_words(self._state / "logs" / "gateway.log")
            raise LlmgwError("no_gateway", f"the gateway did not start within {START_TIMEOUT_S:g} s: {said}") from None


async def _keep_on(loop: Callable[[], Awaitable[None]]) -> None:
    """Runs what is never to end: an error that nobody foresaw is logged, and must not take the house down with it."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("a loop failed unexpectedly and starts again")
        await anyio.sleep(KEEP_ON_PAUSE_S)


async def _save_last(services: Services) -> None:
    """Writes what was counted, if the database takes it in time; the daemon ends as it was asked to either way."""
    give_up = anyio.current_time() + LAST_SAVE_S
    while True:
        try:
            services.dataplane.save()
            return
        except StoreError as error:
            if anyio.current_time() >= give_up:
                log.error("what was counted of canaries and not written yet is lost why=%s", error.why)
                return
        await anyio.sleep(SAVE_AGAIN_S)


def _check_reloadable(old: Settings, new: Settings) -> None:
    """Raises LlmgwError when something changed that only a restart can change."""
    fixed = {
        "gateway.listen": (old.gateway.listen, new.gateway.listen),
        "gateway.workers": (old.gateway.workers, new.gateway.workers),
        "gateway.max_body": (old.gateway.max_body, new.gateway.max_body),
        "gateway.max_connections": (old.gateway.max_connections, new.gateway.max_connections),
        "gateway.max_in_flight": (old.gateway.max_in_flight, new.gateway.max_in_flight),
        "gateway.queue": (old.gateway.queue, new.gateway.queue),
        "admin.listen": (old.admin.listen, new.admin.listen),
        "weights.dir": (old.weights.dir, new.weights.dir),
    }
    for name, (before, after) in fixed.items():
        if before != after:
            raise LlmgwError("needs_restart", f"{name} went from {before} to {after}, which takes a restart")


@contextmanager
def _told_of_files() -> Iterator[None]:
    """Says in words which file of the state folder cannot be used."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise LlmgwError(
            "bad_state_folder",
            f"{error.filename} cannot be used: {error.strerror}",
            hint="the state folder has to be a folder that the daemon's user may write to: mend it, "
            "or give another with LLMGW_STATE_DIR",
        ) from error


def _lock(state: Path) -> IO[str]:
    """Holds the state folder for this process. Raises LlmgwError when another holds it."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (state / "llmgwd.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LlmgwError(
            "state_taken",
            f"another llmgwd uses the state folder {state}",
            hint="stop it first, or give this one its own with LLMGW_STATE_DIR",
        ) from None
    return file
