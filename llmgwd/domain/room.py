"""Whether a replica fits beside what runs, and on which GPUs. Pure: what the machine has is read elsewhere.

Memory that files are mapped into counts as available to the system, which can take it back at any time; what an engine
answers from must not be taken back. So the weights that replicas map are counted once for each file, whoever maps it.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from llmgwd.domain.errors import LlmgwError, refused
from llmgwd.domain.files import size_words
from llmgwd.domain.gpus import Gpu

UNNAMED_BYTES = 1 << 30
"""Used memory of a GPU that makes it somebody's although the driver names no process, as it does in containers."""


class Needs(msgspec.Struct, frozen=True):
    """What one replica takes. `mapped` are weights, by content, that it shares with whoever maps the same file."""

    private_bytes: int = 0
    mapped: tuple[tuple[str, int], ...] = ()
    gpus: int = 0
    gpu_bytes: int = 0
    """On each of its GPUs."""
    parts: tuple[tuple[str, int], ...] = ()
    """What it comes to, for people: of the GPUs' memory together where there are any, else of the host's."""
    measured: bool = False
    """Whether it is what the last start took."""

    @property
    def host_bytes(self) -> int:
        return self.private_bytes + sum(size for _, size in self.mapped)


class Memory(msgspec.Struct, frozen=True):
    """A bound on the memory of this host: its own, or one that a control group sets.

    available_bytes counts what files are cached in as available, mapped or not.
    """

    what: str
    total_bytes: int
    available_bytes: int


class Machine(msgspec.Struct, frozen=True):
    memories: tuple[Memory, ...]
    gpus: tuple[Gpu, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """What a replica that runs or starts was given. private_now_bytes is what it has taken of it so far."""

    owner: str
    needs: Needs
    gpus: tuple[str, ...] = ()
    private_now_bytes: int = 0


def room_for(name: str, needs: Needs, machine: Machine, held: Sequence[Held], count: int = 1) -> LlmgwError | None:
    """Why `count` replicas that need this do not fit beside what is held; None when they do."""
    return _no_memory(name, needs, machine, held, count) or _no_gpu(name, needs, machine, held, count)


def gpus_for(needs: Needs, machine: Machine, held: Sequence[Held], *, forced: bool = False) -> tuple[str, ...]:
    """The GPUs that a replica is given; fewer than it needs when not enough are free.

    Of those that are enough the ones with the least free, so that the large ones stay for who needs them. `forced`:
    also such as others use, first those that none of ours has.
    """
    free = [gpu for gpu in machine.gpus if _taken(gpu, needs, held) is None]
    chosen = sorted(free, key=lambda gpu: (gpu.free_bytes, gpu.number))
    if forced:
        ours = {uuid for each in held for uuid in each.gpus}
        others = [gpu for gpu in machine.gpus if gpu not in free]
        chosen += sorted(others, key=lambda gpu: (gpu.uuid in ours, -gpu.free_bytes, gpu.number))
    return tuple(gpu.uuid for gpu in chosen[: needs.gpus])


def once_ended(machine: Machine, gone: Sequence[Held]) -> Machine:
    """The machine as it will be when those have given back what they took."""
    given_back = sum(each.private_now_bytes for each in gone)
    uuids = {uuid for each in gone for uuid in each.gpus}
    memories = tuple(
        msgspec.structs.replace(memory, available_bytes=memory.available_bytes + given_back)
        for memory in machine.memories
    )
    gpus = tuple(
        gpu._replace(free_bytes=gpu.total_bytes, processes=()) if gpu.uuid in uuids else gpu for gpu in machine.gpus
    )
    return Machine(memories, gpus)


def free_bytes(memory: Memory, held: Iterable[Held]) -> int:
    """What nobody has and nobody was promised."""
    held = list(held)
    promised = sum(max(0, each.needs.private_bytes - each.private_now_bytes) for each in held)
    return memory.available_bytes - promised - sum(_mapped(held).values())


def _mapped(held: Iterable[Held]) -> dict[str, int]:
    return {content: size for each in held for content, size in each.needs.mapped}


def _no_memory(name: str, needs: Needs, machine: Machine, held: Sequence[Held], count: int) -> LlmgwError | None:
    mapped = _mapped(held)
    shared = sum(size for content, size in needs.mapped if content in mapped)
    wanted = needs.private_bytes * count + sum(size for _, size in needs.mapped) - shared
    for memory in machine.memories:
        free = free_bytes(memory, held)
        if wanted > free:
            return refused("does_not_fit", _short_of(name, needs, memory, held, wanted, max(0, free)), hint=_WAY_ON)
    return None


def _short_of(name: str, needs: Needs, memory: Memory, held: Sequence[Held], wanted: int, free: int) -> str:
    of = "" if needs.gpus else _parts_in_words(needs, wanted)
    how = ", as its last start took" if needs.measured else ", by estimate"
    total = size_words(memory.total_bytes)
    return (
        f"{name} does not fit: it needs {size_words(wanted)} of memory{how}{of}; "
        f"{size_words(free)} of {total} are free{memory.what}{_takers(held)}"
    )


def _parts_in_words(needs: Needs, wanted: int) -> str:
    if not needs.parts:
        return ""
    shared = needs.host_bytes - wanted
    said = " + ".join(f"{part} {size_words(size)}" for part, size in needs.parts if size)
    return f" ({said}{f', less {size_words(shared)} that are shared' if shared > 0 else ''})"


def _takers(held: Sequence[Held]) -> str:
    by_owner: dict[str, list[Held]] = {}
    for each in held:
        by_owner.setdefault(each.owner, []).append(each)
    said = ", ".join(f"{owner} takes {size_words(_given(by_owner[owner]))}" for owner in sorted(by_owner))
    return f" ({said})" if said else ""


def _given(held: Sequence[Held]) -> int:
    return sum(each.needs.private_bytes for each in held) + sum(_mapped(held).values())


_WAY_ON = (
    "remove or scale down what is not needed, shorten the context (such as --engine-arg=--ctx-size=8192), or start it "
    "all the same with --no-fit-check"
)
_WAY_ON_GPU = "free one, give --gpus 0 to run it without, or start it all the same with --no-fit-check"


def _no_gpu(name: str, needs: Needs, machine: Machine, held: Sequence[Held], count: int) -> LlmgwError | None:
    wanted = needs.gpus * count
    reasons = {gpu: _taken(gpu, needs, held) for gpu in machine.gpus}
    free = sum(1 for reason in reasons.values() if reason is None)
    if wanted <= free:
        return None
    gpus = "1 GPU" if wanted == 1 else f"{wanted} GPUs"
    each = f" with {size_words(needs.gpu_bytes)} free" if needs.gpu_bytes else ""
    said = "; ".join(f"GPU {gpu.number} ({gpu.name}): {reason or 'free'}" for gpu, reason in reasons.items())
    there = f"{free} of {len(reasons)} are free: {said}" if reasons else "none is seen on this machine"
    message = f"{name} does not fit: it needs {gpus}{each}{_gpu_parts(needs)}; {there}"
    return refused("does_not_fit", message, hint=_WAY_ON_GPU if reasons else _NONE_SEEN)


_NONE_SEEN = (
    "GPUs of NVIDIA are seen where their driver and the package nvidia-ml-py are (pip install 'llmgw[gpu]'); "
    "give --gpus 0 to leave others to the engine itself"
)


def _gpu_parts(needs: Needs) -> str:
    if not needs.gpu_bytes:
        return ""
    how = "as its last start took" if needs.measured else "by estimate"
    said = " + ".join(f"{part} {size_words(size)}" for part, size in needs.parts if size)
    return f" ({how}{f': {said}' if said else ''})"


def _taken(gpu: Gpu, needs: Needs, held: Collection[Held]) -> str | None:
    """Why this GPU is not to be had; None when it is."""
    for each in held:
        if gpu.uuid in each.gpus:
            return f"{each.owner} has it"
    if computing := [process for process in gpu.processes if process.computes]:
        process = max(computing, key=lambda each: each.used_bytes or 0)
        takes = "uses it" if process.used_bytes is None else f"takes {size_words(process.used_bytes)}"
        return f"process {process.pid}, which is not ours, {takes}{_busy(gpu)}"
    if gpu.used_bytes > max(UNNAMED_BYTES, gpu.total_bytes // 20):
        return f"{size_words(gpu.used_bytes)} of {size_words(gpu.total_bytes)} are in use{_busy(gpu)}"
    if gpu.free_bytes < needs.gpu_bytes:
        return f"{size_words(gpu.free_bytes)} of {size_words(gpu.total_bytes)} are free"
    return None


def _busy(gpu: Gpu) -> str:
    return f" at {gpu.busy_percent} % load" if gpu.busy_percent else ""
