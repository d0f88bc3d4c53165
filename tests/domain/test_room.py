"""Whether a replica fits beside what runs, by tables."""

from dataclasses import dataclass, field

import msgspec
import pytest

from llmgwd.domain.gpus import Gpu, GpuProcess
from llmgwd.domain.room import Held, Machine, Memory, Needs, gpus_for, once_ended, room_for
from llmgwd.protocol.exit_status import ExitStatus

GIB = 1 << 30


def host(free: float, total: float = 24, *more: Memory) -> Machine:
    return Machine((Memory("", int(total * GIB), int(free * GIB)), *more))


def needs(own: float, *mapped: tuple[str, float]) -> Needs:
    return Needs(int(own * GIB), tuple((content, int(size * GIB)) for content, size in mapped))


def held(what: Needs, now: float, owner: str = "chat") -> Held:
    return Held(owner, what, private_now_bytes=int(now * GIB))


@dataclass(frozen=True)
class Case:
    wanted: Needs
    free: float
    held: tuple[Held, ...] = ()
    fits: bool = True
    count: int = 1
    limits: tuple[Memory, ...] = field(default_factory=tuple)


CASES = {
    "it fits": Case(needs(1, ("a", 4)), 6),
    "to the last byte": Case(needs(2, ("a", 4)), 6),
    "one byte short": Case(Needs(6 * GIB + 1), 6, fits=False),
    "the weights that stable maps are not free, whatever the system says": Case(
        needs(1, ("b", 4)), 6, (held(needs(1, ("a", 4)), 1),), fits=False
    ),
    "a second replica shares the weights' file": Case(needs(1, ("a", 4)), 6, (held(needs(1, ("a", 4)), 1),)),
    "and maps what it does not share": Case(
        needs(1, ("a", 4), ("b", 2)), 6, (held(needs(1, ("a", 4)), 1),), fits=False
    ),
    "two that map one file keep it once": Case(
        needs(1, ("b", 1)), 6, (held(needs(1, ("a", 4)), 1), held(needs(1, ("a", 4)), 1))
    ),
    "what was promised to one that starts is not free": Case(needs(3), 6, (held(needs(4), 0),), fits=False),
    "what it has taken since is not counted twice": Case(needs(3), 3, (held(needs(4), 4),)),
    "nor is what it took beyond": Case(needs(3), 3, (held(needs(4), 9),)),
    "several at once": Case(needs(2), 6, count=3),
    "several at once that are too many": Case(needs(2), 6, count=4, fits=False),
    "several at once map their weights once": Case(needs(1, ("a", 3)), 6, count=3),
    "a control group has less": Case(needs(5), 20, limits=(Memory(" in G", 8 * GIB, 4 * GIB),), fits=False),
    "a control group has enough": Case(needs(3), 20, limits=(Memory(" in G", 8 * GIB, 4 * GIB),)),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_memory(case: Case) -> None:
    refusal = room_for("new", case.wanted, host(case.free, 24, *case.limits), case.held, case.count)
    assert (refusal is None) == case.fits
    if refusal is not None:
        assert (refusal.code, refusal.status) == ("does_not_fit", ExitStatus.REFUSED)
        assert "--no-fit-check" in refusal.hint


def test_a_refusal_has_all_the_numbers() -> None:
    parts = (("weights", 7 * GIB), ("context", GIB), ("margin", GIB))
    wanted = Needs(2 * GIB, (("b", 7 * GIB),), parts=parts)
    refusal = room_for("chat-canary", wanted, host(14), [held(needs(1, ("a", 7)), 0.5)])
    assert refusal is not None
    assert refusal.message == (
        "chat-canary does not fit: it needs 9.0 GiB of memory, by estimate (weights 7.0 GiB + context 1.0 GiB + "
        "margin 1.0 GiB); 6.5 GiB of 24.0 GiB are free (chat takes 8.0 GiB)"
    )


def test_a_refusal_says_what_is_shared_and_which_limit_it_is() -> None:
    parts = (("weights", 4 * GIB), ("its own", GIB))
    wanted = Needs(GIB, (("a", 4 * GIB),), parts=parts, measured=True)
    limit = Memory(" within the limit of control group /g", 8 * GIB, 4 * GIB + 1)
    refusal = room_for("chat", wanted, host(20, 24, limit), [held(needs(1, ("a", 4)), 1)])
    assert refusal is not None
    assert refusal.message == (
        "chat does not fit: it needs 1.0 GiB of memory, as its last start took (weights 4.0 GiB + its own 1.0 GiB, "
        "less 4.0 GiB that are shared); 1 bytes of 8.0 GiB are free within the limit of control group /g "
        "(chat takes 5.0 GiB)"
    )


def test_replicas_of_one_file_take_it_once_in_what_is_told() -> None:
    refusal = room_for("new", needs(9), host(9), [held(needs(1, ("a", 4)), 1), held(needs(1, ("a", 4)), 1)])
    assert refusal is not None
    assert refusal.message.endswith("(chat takes 6.0 GiB)")


def gpu(index: int, free: float = 80, processes: tuple[GpuProcess, ...] = (), busy: int | None = None) -> Gpu:
    return Gpu(index, f"GPU-{index}", "A100", 80 * GIB, int(free * GIB), busy, processes)


def on_gpus(count: int, gib: float = 0) -> Needs:
    return Needs(gpus=count, gpu_bytes=int(gib * GIB))


def owner(name: str, *gpus: int) -> Held:
    return Held(name, on_gpus(len(gpus)), tuple(f"GPU-{index}" for index in gpus))


@pytest.mark.parametrize(
    ("wanted", "gpus", "others", "given"),
    [
        pytest.param(on_gpus(0), [gpu(0)], [], (), id="none wanted"),
        pytest.param(on_gpus(1), [gpu(0), gpu(1)], [], ("GPU-0",), id="the first of equals"),
        pytest.param(on_gpus(1), [gpu(0), gpu(1)], [owner("chat", 0)], ("GPU-1",), id="a canary gets another"),
        pytest.param(on_gpus(2), [gpu(0), gpu(1), gpu(2)], [owner("chat", 1)], ("GPU-0", "GPU-2"), id="two"),
        pytest.param(on_gpus(1, 20), [gpu(0, 79.5), gpu(1, 79.2)], [], ("GPU-1",), id="the tightest that is enough"),
        pytest.param(on_gpus(1), [gpu(0, 79.5, (GpuProcess(7, None),)), gpu(1)], [], ("GPU-1",), id="not a stranger's"),
        pytest.param(on_gpus(1), [gpu(0, 60), gpu(1)], [], ("GPU-1",), id="not one that somebody unnamed uses"),
        pytest.param(
            on_gpus(1),
            [gpu(0, 79.5, (GpuProcess(7, 1 << 20, computes=False),))],
            [],
            ("GPU-0",),
            id="one with a screen",
        ),
    ],
)
def test_gpus_are_given_whole(wanted: Needs, gpus: list[Gpu], others: list[Held], given: tuple[str, ...]) -> None:
    machine = Machine((), tuple(gpus))
    assert gpus_for(wanted, machine, others) == given
    assert room_for("new", wanted, machine, others) is None


@pytest.mark.parametrize(
    ("wanted", "gpus", "others", "says"),
    [
        pytest.param(on_gpus(1), [], [], "none is seen on this machine", id="no GPU"),
        pytest.param(on_gpus(1), [gpu(0)], [owner("chat", 0)], "GPU 0 (A100): chat has it", id="stable has it"),
        pytest.param(
            on_gpus(1),
            [gpu(0, 68, (GpuProcess(4242, 12 * GIB),), 97)],
            [],
            "GPU 0 (A100): process 4242, which is not ours, takes 12.0 GiB at 97 % load",
            id="a stranger has it",
        ),
        pytest.param(on_gpus(1), [gpu(0, 60)], [], "20.0 GiB of 80.0 GiB are in use", id="somebody unnamed has it"),
        pytest.param(on_gpus(1, 90), [gpu(0)], [], "needs 1 GPU with 90.0 GiB free", id="it is too small"),
        pytest.param(on_gpus(3), [gpu(0), gpu(1)], [], "needs 3 GPUs; 2 of 2 are free", id="too few"),
    ],
)
def test_gpus_that_are_not_free(wanted: Needs, gpus: list[Gpu], others: list[Held], says: str) -> None:
    refusal = room_for("new", wanted, Machine((), tuple(gpus)), others)
    assert refusal is not None
    assert says in refusal.message
    assert "--gpus 0" in refusal.hint


def test_what_ends_gives_back_what_it_took() -> None:
    gone = msgspec.structs.replace(owner("chat", 0), private_now_bytes=2 * GIB)
    used = Machine(host(1).memories, (gpu(0, 10, (GpuProcess(7, None),)), gpu(1, 10, (GpuProcess(8, None),))))
    after = once_ended(used, [gone])
    assert after.memories[0].available_bytes == 3 * GIB
    assert gpus_for(on_gpus(2), after, []) == ("GPU-0",)


def test_who_insists_is_given_what_is_nobodys_first() -> None:
    stranger = gpu(2, 79)._replace(processes=(GpuProcess(7, None),))
    machine, others = Machine((), (gpu(0), gpu(1), stranger)), [owner("chat", 0, 1)]
    assert gpus_for(on_gpus(1), machine, others, forced=True) == ("GPU-2",)
    assert gpus_for(on_gpus(2), machine, others, forced=True) == ("GPU-2", "GPU-0")
