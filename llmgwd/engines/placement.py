"""Room for replicas: each is given what it needs of memory and GPUs before it is started, and holds it until it ended.

One decision at a time: of two that start at once, the second sees what the first was given.
"""

import hashlib
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread
import msgspec

from llmgwd.domain.catalog import CANARY_SUFFIX, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.estimate import Footprint, Weighed, as_measured, context_bytes, estimate
from llmgwd.domain.gpus import Gpu
from llmgwd.domain.room import Held, Machine, Needs, gpus_for, once_ended, room_for
from llmgwd.engines import footprint
from llmgwd.engines.gpus import VISIBLE
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.engines.templates import Engine, slots

log = logging.getLogger(__name__)


class MachineReader(Protocol):
    def read(self) -> Machine:
        """What the machine has now. Called in a thread."""
        ...


class FootprintRecords(Protocol):
    def of(self, model: str, runs: str) -> list[Footprint]: ...
    def put(self, found: Footprint) -> None: ...


Weigh = Callable[[Origin, Path | None], Weighed]


class Wanted(NamedTuple):
    """Who is to be started, and how: enough to say whether it fits before its weights are there."""

    name: str
    origin: Origin
    path: Path | None
    engine: Engine
    engine_args: tuple[str, ...]
    gpus: int

    @property
    def model(self) -> str:
        return self.name.removesuffix(CANARY_SUFFIX)

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.engine.argv, *self.engine_args)

    @property
    def runs(self) -> str:
        """Digest of what decides, beside the weights, how much memory it takes."""
        return hashlib.sha256(msgspec.json.encode([self.words, self.gpus])).hexdigest()


def wanted(spec: ReplicaSpec) -> Wanted:
    return Wanted(spec.model, spec.origin, spec.path, spec.engine, spec.engine_args, spec.gpus)


class Placement:
    def __init__(self, machine: MachineReader, weigh: Weigh, footprints: FootprintRecords) -> None:
        self._machine = machine
        self._weigh = weigh
        self._footprints = footprints
        self._placed: dict[str, Replica] = {}
        self._deciding = anyio.Lock()
        self._sees_gpus = False

    async def refusal(self, start: Wanted, *, count: int = 1, without: Collection[str] = ()) -> LlmgwError | None:
        """Why so many replicas would not fit now, or once those `without` have ended; None when they would."""
        needs = await self._needs(start)
        machine, held = await self._look(without)
        return room_for(start.name, needs, machine, held, count)

    async def place(self, replica: Replica, *, insists: bool = False) -> None:
        """Gives it room, which it keeps until `release`. Raises LlmgwError when it does not fit.

        `insists`: it served before, and is started whatever the host's memory looks like as long as that is known of
        it; so are specs that are not to be checked, which are given GPUs that others use as well.
        """
        spec = replica.spec
        if not spec.engine.argv:
            return  # nothing is started
        async with self._deciding:
            machine, held = await self._look()
            self._sees_gpus = bool(machine.gpus)
            if replica.id in self._placed:
                return
            needs = await self._needs(wanted(spec))
            refusal = room_for(replica.owner, needs, machine, held) if spec.fit_check else None
            given = gpus_for(needs, machine, held, forced=not spec.fit_check)
            if refusal is not None and not (insists and needs.measured and len(given) == needs.gpus):
                raise refusal
            if refusal is not None:
                log.warning("started although memory is short id=%s why=%s", replica.id, refusal.message)
            replica.needs, replica.gpus = needs, given
            self._placed[replica.id] = replica

    async def adopt(self, replica: Replica) -> None:
        """One found running holds what it was given."""
        if replica.needs is None and replica.spec.engine.argv:
            replica.needs = await self._needs(wanted(replica.spec))
        self._placed[replica.id] = replica

    def release(self, replica: Replica) -> None:
        """To be called once nothing of it runs any more and it is not started again."""
        self._placed.pop(replica.id, None)

    def env(self, replica: Replica) -> dict[str, str]:
        """What its process is to see of the GPUs: those it was given, and no other."""
        if not self._sees_gpus or VISIBLE in replica.spec.engine.env:
            return {}
        return {VISIBLE: ",".join(replica.gpus)}

    async def note(self, replica: Replica) -> None:
        """Measures what it took, once it answers: what it holds from now on, and what its next start is taken for."""
        pid, spec = replica.pid, replica.spec
        if pid is None or replica.needs is None:
            return
        folder = spec.path if spec.path.is_dir() else spec.path.parent
        taken = await anyio.to_thread.run_sync(footprint.measure, pid, folder)
        if taken is None:
            return
        start = wanted(spec)
        weighed = await self._weighed(start)
        found = Footprint(
            model=start.model,
            runs=start.runs,
            weights_bytes=weighed.size_bytes,
            context_bytes=_context(start, weighed),
            private_bytes=taken.private_bytes,
            maps_weights=taken.mapped_bytes > 0,
            gpu_bytes=await self._on_gpus(replica),
            at=datetime.now(UTC),
        )
        replica.needs = as_measured(weighed, found.context_bytes, spec.gpus, [found])
        try:
            self._footprints.put(found)
        except LlmgwError as error:
            log.warning("what a start took is not noted id=%s why=%s", replica.id, error.message)

    async def _on_gpus(self, replica: Replica) -> int:
        """The most that it takes on one of its GPUs; 0 when that cannot be told from what others take."""
        if not replica.gpus or replica.pid is None:
            return 0
        machine, held = await self._look()
        pids = {each.pid for each in footprint.group(replica.pid)}
        alone = sum(uuid in each.gpus for each in held for uuid in replica.gpus) == len(replica.gpus)
        return max((_taken(gpu, pids, alone=alone) for gpu in machine.gpus if gpu.uuid in replica.gpus), default=0)

    async def _needs(self, start: Wanted) -> Needs:
        weighed = await self._weighed(start)
        known = self._footprints.of(start.model, start.runs)
        measured = as_measured(weighed, _context(start, weighed), start.gpus, known)
        return measured or estimate(weighed, start.words, _slots(start), start.gpus)

    async def _weighed(self, start: Wanted) -> Weighed:
        return await anyio.to_thread.run_sync(self._weigh, start.origin, start.path)

    async def _look(self, without: Collection[str] = ()) -> tuple[Machine, list[Held]]:
        """The machine and what is held on it, as it will be once those have ended."""
        # What a replica took is read first: what it takes meanwhile is then counted twice, and not overlooked.
        placed = [(each, each.pid) for each in self._placed.values()]

        def read() -> tuple[Machine, list[Held]]:
            held: list[Held] = []
            gone: list[Held] = []
            for each, pid in placed:
                now = footprint.private_now(pid) if pid else 0
                found = Held(each.owner, each.needs or Needs(), each.gpus, now)
                (gone if each.id in without else held).append(found)
            return once_ended(self._machine.read(), gone), held

        return await anyio.to_thread.run_sync(read)


def _slots(start: Wanted) -> int | None:
    return slots(start.engine, start.engine_args)


def _context(start: Wanted, weighed: Weighed) -> int:
    return context_bytes(weighed, start.words, _slots(start))


def _taken(gpu: Gpu, pids: Collection[int], *, alone: bool) -> int:
    by_driver = [each.used_bytes for each in gpu.processes if each.pid in pids and each.used_bytes is not None]
    return sum(by_driver) or (gpu.used_bytes if alone else 0)
