"""The daemon: its parts wired together, brought up, reloaded and taken down."""

import fcntl
import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import IO

import anyio
import anyio.abc

from llmgwd import process
from llmgwd.admin import admin_app, bind, serve_admin
from llmgwd.config import Settings, read_settings
from llmgwd.control.answers import Answers
from llmgwd.control.server import ControlServer, clear
from llmgwd.control.verbs import Verbs
from llmgwd.dataplane.dataplane import Dataplane, read_keys
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.totals import Totals
from llmgwd.dataplane.workers import START_TIMEOUT_S, Workers
from llmgwd.declare import declare, declared_models, engines_of, start
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.fleet import Fleet
from llmgwd.jobs.feed import Feed
from llmgwd.jobs.recipes import RECIPES
from llmgwd.jobs.recover import recover
from llmgwd.jobs.run import Cancellation
from llmgwd.jobs.runner import Runner
from llmgwd.jobs.services import Services
from llmgwd.metrics import Metrics
from llmgwd.notify import Notifier
from llmgwd.store.processes import ProcessRow
from llmgwd.store.store import Store
from llmgwd.updates import keep_checking
from llmgwd.watch import watch
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.token import TokenSource

log = logging.getLogger(__name__)

STOP_GRACE_S = 5.0


class _Ledger:
    """Writes running processes down in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def started(self, pid: int, identity: str, what: str) -> None:
        self._store.processes.put(ProcessRow(pid, identity, what))

    def ended(self, pid: int) -> None:
        self._store.processes.delete(pid)


class Daemon:
    """One life of llmgwd on one state folder."""

    def __init__(self, settings: Settings, config: Path | None, socket: Path, state: Path) -> None:
        self._settings = settings
        self._config = config
        self._socket = socket
        self._state = state
        self._services: Services
        self._runner: Runner
        self._workers: Workers
        self._lock: IO[str]

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Runs until cancelled; started once the gateway answers. Raises LlmgwError when it cannot start."""
        settings = self._settings
        engines = engines_of(settings)
        clear(self._socket)
        self._lock = _lock(self._state)
        logs = self._state / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        store = Store(self._state / "llmgw.db")
        wanted = declared_models(settings, engines, [each for each in store.models.all() if not each.declared])
        keys = read_keys(settings.gateway.api_keys_file)
        ledger = _Ledger(store)
        mark = process.mark(self._state)
        await _end_leftovers(store, self._state)
        admin_socket = bind(settings.admin.listen)
        tally = Tally(store.canaries)
        totals = Totals(anyio.current_time)
        link = Link(self._state / "gateway.sock", tally.add, totals)
        self._workers = Workers(settings.gateway, self._state / "gateway.sock", logs, ledger, mark)
        self._workers.check_address()
        notifier = Notifier(lambda: self._settings.notify)
        async with anyio.create_task_group() as tasks:
            fleet = Fleet(logs, ledger, tasks, lambda: dataplane.wish(), mark)
            dataplane = Dataplane(store, fleet, link, self._workers, tally)
            dataplane.key_hashes = keys
            services = self._services = Services(
                settings=settings,
                engines=engines,
                store=store,
                hub=Hub(settings.hub.endpoint, TokenSource(settings.hub.token_file)),
                library=Library(settings.weights.dir or self._state / "weights"),
                fleet=fleet,
                dataplane=dataplane,
                feed=Feed(),
                state_folder=self._state,
                notify=notifier.take,
            )
            self._runner = Runner(services, RECIPES, tasks)
            answers = Answers(services, Verbs(services, self._runner), version("llmgw"), os.getpid(), services.now())
            recover(services)
            await tasks.start(link.serve)
            self._workers.start(tasks)
            tasks.start_soon(dataplane.fulfil_wishes)
            tasks.start_soon(notifier.deliver)
            _start_catalog(services)
            await declare(services, wanted)
            await self._wait_for_gateway(link)
            tasks.start_soon(watch, services)
            tasks.start_soon(keep_checking, services)
            tasks.start_soon(serve_admin, admin_socket, admin_app(answers.status, Metrics(totals, link).page))
            await tasks.start(ControlServer(self._socket, answers, f"llmgwd {version('llmgw')}").serve)
            task_status.started()

    async def reload(self) -> None:
        """Reads the configuration again and applies it; one that cannot be applied whole changes nothing."""
        try:
            settings = read_settings(self._config)
            _check_reloadable(self._settings, settings)
            engines = engines_of(settings)
            others = [each for each in self._services.store.models.all() if not each.declared]
            wanted = declared_models(settings, engines, others)
            keys = read_keys(settings.gateway.api_keys_file)
        except LlmgwError as error:
            log.error("configuration not reloaded, nothing changed: %s", error.message)
            return
        self._settings = self._services.settings = settings
        self._services.engines = engines
        self._services.hub = Hub(settings.hub.endpoint, TokenSource(settings.hub.token_file))
        self._services.dataplane.key_hashes = keys
        await declare(self._services, wanted)
        log.info("configuration reloaded path=%s", self._config)

    async def stop(self) -> None:
        """Ends jobs, lets requests end within `gateway.drain`, then ends every process."""
        drain_s = self._settings.gateway.drain
        await self._runner.stop_all(Cancellation("llmgw", "the daemon was stopped"))
        await self._services.dataplane.link.finish(drain_s)
        await self._workers.wait_ended(drain_s + STOP_GRACE_S)
        await self._services.fleet.stop_all()
        self._services.dataplane.tally.save()
        self._services.store.close()

    async def _wait_for_gateway(self, link: Link) -> None:
        try:
            with anyio.fail_after(START_TIMEOUT_S):
                await link.connected(self._settings.gateway.workers)
        except TimeoutError:
            said = process.last_words(self._state / "logs" / "gateway.log")
            raise LlmgwError("no_gateway", f"the gateway did not start within {START_TIMEOUT_S:g} s: {said}") from None


def _start_catalog(services: Services) -> None:
    """Starts what the catalog says is served; a row whose weights are gone is said and left."""
    for model in services.store.models.all():
        if model.declared:
            continue
        try:
            start(services, model)
        except LlmgwError as error:
            log.error("model not started name=%s why=%s", model.name, error.message)


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


async def _end_leftovers(store: Store, state: Path) -> None:
    """Ends what a life that was killed left running: the processes written down, and those that bear its mark."""
    written = {row.pid: row.identity for row in store.processes.all()}
    async with anyio.create_task_group() as tasks:
        for pid, name in {**written, **dict(process.marked(state))}.items():
            log.info("ending what the last llmgwd left running pid=%d", pid)
            tasks.start_soon(process.end, pid, name, STOP_GRACE_S)
    for pid in written:
        store.processes.delete(pid)


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
