"""The daemon's parts, wired together; none of them runs yet, and settings that cannot be followed are refused."""

import os
import socket
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anyio
import anyio.abc

from llmgwd.admin import bind
from llmgwd.config import Settings
from llmgwd.control.answers import Answers
from llmgwd.control.server import ControlServer
from llmgwd.control.verbs import Verbs
from llmgwd.dataplane.bench import Bench
from llmgwd.dataplane.dataplane import Dataplane, read_keys
from llmgwd.dataplane.link import Link
from llmgwd.dataplane.tally import Tally
from llmgwd.dataplane.totals import Totals
from llmgwd.dataplane.workers import Workers
from llmgwd.declare import declared_models, engines_of
from llmgwd.domain.catalog import Model
from llmgwd.engines.fleet import Fleet
from llmgwd.engines.gpus import open_gpus
from llmgwd.engines.machine import ThisMachine
from llmgwd.engines.placement import MachineReader, Placement
from llmgwd.jobs.feed import Feed
from llmgwd.jobs.recipes import RECIPES
from llmgwd.jobs.runner import Runner
from llmgwd.jobs.services import Services
from llmgwd.metrics import Metrics
from llmgwd.notify import Notifier
from llmgwd.private import make_private
from llmgwd.protocol.socket_path import checked
from llmgwd.store.patient import PatientProcesses
from llmgwd.store.store import Store
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.space import Space
from llmgwd.weights.token import TokenSource
from llmgwd.weights.weigh import weigh


@dataclass
class Parts:
    """One of each, for one life of the daemon."""

    wanted: list[Model]
    """The declared models, as the configuration has them."""
    database: Path
    records: PatientProcesses
    services: Services
    workers: Workers
    link: Link
    metrics: Metrics
    notifier: Notifier
    runner: Runner
    verbs: Verbs
    answers: Answers
    control: ControlServer
    admin_socket: socket.socket
    """Bound to `admin.listen`."""


def hub(settings: Settings) -> Hub:
    return Hub(settings.hub.endpoint, TokenSource(settings.hub.token_file))


def wire(
    settings: Settings,
    control_socket: Path,
    state: Path,
    tasks: anyio.abc.TaskGroup,
    runner_type: type[Runner],
    machine: MachineReader | None = None,
) -> Parts:
    """Makes every part; `state` is this daemon's, `machine` what replicas are placed on: this one when None.

    Raises LlmgwError when the settings cannot be followed."""
    engines = engines_of(settings)
    link_path = checked(state / "gateway.sock")
    make_private(state / "logs")
    database = state / "llmgw.db"
    store = Store(database)
    records = PatientProcesses(store.processes)
    wanted = declared_models(settings, engines, [each for each in store.models.all() if not each.declared])
    keys = read_keys(settings.gateway.api_keys_file)
    admin_socket = bind(settings.admin.listen)
    totals = Totals(anyio.current_time)
    # What each is given of a later one is called in no case before all are there.
    link = Link(link_path, lambda report: dataplane.take(report), totals, lambda *it: workers.take_listeners(*it))
    workers = Workers(settings.gateway, link_path, state, records, version("llmgw"), link.forget)
    notifier = Notifier(lambda: services.settings.notify)
    gpus = open_gpus()
    placement = Placement(machine or ThisMachine(gpus), weigh, store.footprints)
    fleet = Fleet(state, tasks, records, placement, lambda: dataplane.wish(), link.heard_at, gpus)
    dataplane = Dataplane(store, fleet, link, workers, Tally(store.canaries), Bench(store.canaries))
    dataplane.key_hashes = keys
    library = Library(settings.weights.dir or state / "weights")
    services = Services(
        settings=settings,
        engines=engines,
        store=store,
        hub=hub(settings),
        library=library,
        space=Space(library),
        fleet=fleet,
        dataplane=dataplane,
        feed=Feed(),
        state_folder=state,
        notify=notifier.take,
    )
    runner = runner_type(services, RECIPES, tasks)
    verbs = Verbs(services, runner)
    answers = Answers(services, verbs, version("llmgw"), os.getpid(), services.now())
    return Parts(
        wanted=wanted,
        database=database,
        records=records,
        services=services,
        workers=workers,
        link=link,
        metrics=Metrics(totals, link),
        notifier=notifier,
        runner=runner,
        verbs=verbs,
        answers=answers,
        control=ControlServer(control_socket, answers, f"llmgwd {version('llmgw')}"),
        admin_socket=admin_socket,
    )
