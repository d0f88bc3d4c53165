"""What is read from a GPU driver, and when ended processes have given their memory back."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from llmgwd.domain.gpus import Gpu, GpuProcess
from llmgwd.engines.gpus import Gpus, open_gpus, unreleased, visible

GIB = 1024**3


class Driver:
    """Says what pynvml would of `gpus`; a function named in `refuses` raises, as on GPUs that do not tell."""

    class NVMLError(Exception):
        pass

    class NVMLLibraryMismatchError(Exception):
        pass

    def __init__(self, *gpus: Gpu, refuses: tuple[str, ...] = (), lost: tuple[int, ...] = ()) -> None:
        self.gpus = list(gpus)
        self.refuses = refuses
        self.lost = lost
        self.refusal: type[Exception] = self.NVMLError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Callable[[Gpu], Any]] = {
            "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=gpu.total_bytes, free=gpu.free_bytes),
            "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu.busy_percent),
            "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
            "nvmlDeviceGetName": lambda gpu: gpu.name,
            "nvmlDeviceGetGraphicsRunningProcesses": lambda gpu: _listed(gpu)[:1],
            "nvmlDeviceGetComputeRunningProcesses": _listed,
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(handle: Gpu) -> Any:
            if name in self.refuses:
                raise self.refusal("Not Supported")
            return answers[name](handle)

        return answer

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if "nvmlDeviceGetCount" in self.refuses:
            raise self.NVMLError("Driver Not Loaded")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if index in self.lost:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]


def _listed(gpu: Gpu) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=each.pid, usedGpuMemory=each.used_bytes) for each in gpu.processes]


def gpu(used: int, *processes: tuple[int, int | None], index: int = 0, busy: int | None = 7) -> Gpu:
    """One of 24 GiB, of which `used` are in use."""
    listed = tuple(GpuProcess(pid, None if held is None else held * GIB) for pid, held in processes)
    return Gpu(index, f"GPU-{index}", "L4", 24 * GIB, (24 - used) * GIB, busy, listed)


def test_every_gpu_is_told_of_with_each_process_once() -> None:
    there = [gpu(9, (10, 5), (11, 3)), gpu(0, index=1)]
    assert Gpus(Driver(*there)).look() == there


@pytest.mark.parametrize("refusal", ["NVMLError", "NVMLLibraryMismatchError"])
def test_what_a_gpu_does_not_tell_is_unknown_and_one_that_is_lost_is_left_out(refusal: str) -> None:
    silent = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses")
    driver = Driver(gpu(9, (10, None)), gpu(0, index=1), refuses=silent, lost=(1,))
    driver.refusal = getattr(Driver, refusal)
    drawing = gpu(9, (10, None), busy=None)._replace(processes=(GpuProcess(10, None, computes=False),))
    assert Gpus(driver).look() == [drawing]


def test_a_driver_that_was_unloaded_has_no_gpus() -> None:
    assert Gpus(Driver(gpu(0), refuses=("nvmlDeviceGetCount",))).look() == []


def test_without_a_driver_there_is_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises() -> None:
        raise Driver.NVMLError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=raises, NVMLError=Driver.NVMLError))
    assert open_gpus() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus() is None


@pytest.mark.parametrize(
    ("before", "now", "left"),
    [
        pytest.param(gpu(9, (10, 8)), gpu(1), {}, id="given back"),
        pytest.param(gpu(9, (10, 8)), gpu(9, (10, 8)), {0: 8 * GIB}, id="still listed"),
        pytest.param(gpu(9, (10, None)), gpu(9, (10, None)), {0: 0}, id="still listed, its memory not told"),
        pytest.param(gpu(9, (10, 8)), gpu(9), {0: 8 * GIB}, id="gone from the list, its memory in use"),
        pytest.param(gpu(9, (10, 8)), gpu(4), {0: 3 * GIB}, id="a part in use"),
        pytest.param(gpu(9, (10, 8)), gpu(7, (20, 6)), {}, id="another has taken it"),
        pytest.param(gpu(9, (20, 8)), gpu(12), {}, id="never there"),
        pytest.param(gpu(9, (10, None)), gpu(12), {}, id="its memory was not told"),
        pytest.param(gpu(9, (10, 8)), gpu(9, (10, 8), index=1), {}, id="that gpu is lost"),
    ],
)
def test_memory_is_back_when_no_process_is_listed_and_none_is_in_use_by_nobody(
    before: Gpu, now: Gpu, left: dict[int, int]
) -> None:
    assert unreleased([before], [now], {10}) == left


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [(None, [0, 1, 2]), ("", []), ("1", [1]), ("2,0", [2, 0]), ("GPU-1", [1]), ("0,9,1", [0]), ("-1", [])],
)
def test_the_operators_choice_holds_for_the_engines(wanted: str | None, seen: list[int]) -> None:
    assert [each.number for each in visible([gpu(0, index=index) for index in range(3)], wanted)] == seen
