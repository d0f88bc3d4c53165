"""The daemon: its parts wired together, brought up, reloaded and taken down."""

import fcntl
import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, NamedTuple

import anyio
import anyio.abc

from llmgwd import process
from llmgwd.admin import admin_app, bind, serve_admin
from llmgwd.config import Settings, read_settings
from llmgwd.control.answers import Answers
from llmgwd.control.server import ControlServer, clear
from llmgwd.control.verbs import Verbs
from llmgwd.dataplane.bench import Bench
from llmgwd.dataplane.dataplane import Dataplane, read_keys
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.totals import Totals
from llmgwd.dataplane.workers import START_TIMEOUT_S, Workers
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
from llmgwd.engines.fleet import Fleet
from llmgwd.jobs.clean_up import keep_clean
from llmgwd.jobs.feed import Feed
from llmgwd.jobs.recipes import RECIPES
from llmgwd.jobs.runner import Runner
from llmgwd.jobs.services import Services
from llmgwd.jobs.upkeep import go_on
from llmgwd.leftovers import end_left
from llmgwd.metrics import Metrics
from llmgwd.notify import Notifier
from llmgwd.private import make_private
from llmgwd.protocol.socket_path import checked
from llmgwd.store.backup import keep_backed_up
from llmgwd.store.database import StoreError
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from llmgwd.updates import keep_checking
from llmgwd.watch import finish_removals, watch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.space import Space
from llmgwd.weights.token import TokenSource

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
KEEP_ON_PAUSE_S = 1.0


class _Up(NamedTuple):
    """The parts that a reload or a stop goes through."""

    services: Services
    runner: Runner
    workers: Workers
    control: ControlServer


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
    ) -> None:
        """`leaves_running`: gateway and replicas outlive this life, and the next goes on with them."""
        self.leaves_running = leaves_running
        self._settings = settings
        self._runner_type = runner
        self._config = config
        self._socket = socket
        self._state = state
        self._up: _Up | None = None
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
        settings = self._settings
        engines = engines_of(settings)
        link_path = checked(self._state / "gateway.sock")
        clear(self._socket)
        self._lock = _lock(self._state)
        self._owns_state = True
        logs = self._state / "logs"
        make_private(logs)
        database = self._state / "llmgw.db"
        store = Store(database)
        records = self._records = PatientProcesses(store.processes)
        wanted = declared_models(settings, engines, [each for each in store.models.all() if not each.declared])
        keys = read_keys(settings.gateway.api_keys_file)
        admin_socket = bind(settings.admin.listen)
        tally = Tally(store.canaries)
        totals = Totals(anyio.current_time)
        # What each is given of a later one is called in no case before all are there.
        link = Link(link_path, lambda report: dataplane.take(report), totals, lambda *it: workers.take_listeners(*it))
        workers = Workers(settings.gateway, link_path, self._state, records, version("llmgw"), link.forget)
        notifier = Notifier(lambda: self._settings.notify)
        fleet = Fleet(self._state, tasks, records, lambda: dataplane.wish(), link.heard_at)
        dataplane = Dataplane(store, fleet, link, workers, tally, Bench(store.canaries))
        dataplane.key_hashes = keys
        library = Library(settings.weights.dir or self._state / "weights")
        services = Services(
            settings=settings,
            engines=engines,
            store=store,
            hub=_hub(settings),
            library=library,
            space=Space(library),
            fleet=fleet,
            dataplane=dataplane,
            feed=Feed(),
            state_folder=self._state,
            notify=notifier.take,
        )
        runner = self._runner_type(services, RECIPES, tasks)
        verbs = Verbs(services, runner)
        answers = Answers(services, verbs, version("llmgw"), os.getpid(), services.now())
        control = ControlServer(self._socket, answers, f"llmgwd {version('llmgw')}")
        await control.listen()
        tasks.start_soon(control.serve)
        found = {each.id for each in workers.adopt(link)} | {each.id for each in await fleet.adopt(engines.values())}
        workers.check_address()
        await tasks.start(link.serve)
        self._found = found
        self._up = _Up(services, runner, workers, control)
        fleet.take_up()
        await end_left(self._state, records, STOP_GRACE_S, keep=found)
        workers.start(tasks, link)
        tasks.start_soon(_keep_on, records.keep_written)
        tasks.start_soon(_keep_on, dataplane.fulfil_wishes)
        tasks.start_soon(_keep_on, dataplane.keep_saved)
        tasks.start_soon(_keep_on, notifier.deliver)
        tasks.start_soon(_keep_on, partial(keep_clean, services))
        tasks.start_soon(_keep_on, partial(keep_backed_up, database))
        go_on(services, tasks)
        await self._declare(services, wanted)
        await self._wait_for_gateway(link, workers)
        runner.resume()
        tasks.start_soon(finish_removals, services)
        tasks.start_soon(_keep_on, partial(watch, services, verbs))
        tasks.start_soon(_keep_on, partial(keep_checking, services))
        app = admin_app(answers.status, Metrics(totals, link).page)
        tasks.start_soon(serve_admin, admin_socket, app)
        control.open()

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
                gone = write_down(up.services, wanted)
            except LlmgwError as error:
                log.error("configuration not reloaded, nothing changed: %s", error.message)
                return
            self._settings = up.services.settings = settings
            up.services.engines = engines
            up.services.hub = _hub(settings)
            up.services.dataplane.key_hashes = keys
            await serve_declared(up.services, wanted, gone, self._tasks)
            log.info("configuration reloaded path=%s", self._config)

    async def stop(self) -> None:
        """Takes no more verbs and leaves jobs for the next start, drains, then ends every process."""
        self._leaves = False
        up = await self._down()
        if up is not None:
            drain_s = self._settings.gateway.drain
            link = up.services.dataplane.link
            up.workers.close_address()
            told = {each.pid for each in link.workers}
            await link.finish(drain_s)
            await up.workers.wait_ended(drain_s + STOP_GRACE_S, told)
            await up.services.fleet.stop_all()
            up.services.dataplane.save()

    async def leave(self) -> None:
        """Ends the daemon alone: jobs stop where they are; gateway and replicas serve on for the next life."""
        self._leaves = True
        up = await self._down()
        if up is not None:
            # What is taken after the samples are saved would be lost: workers keep it for the next life.
            up.services.dataplane.link.close()
            up.services.dataplane.save()

    async def _down(self) -> _Up | None:
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

    async def _wait_for_gateway(self, link: Link, workers: Workers) -> None:
        try:
            with anyio.fail_after(START_TIMEOUT_S):
                await link.connected(self._settings.gateway.workers, workers.replaced_pids)
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


def _hub(settings: Settings) -> Hub:
    return Hub(settings.hub.endpoint, TokenSource(settings.hub.token_file))


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
