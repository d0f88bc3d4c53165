"""The NVIDIA GPUs of this machine, as their driver tells of them: memory, use, and the processes on each.

Optional: without the package nvidia-ml-py (`llmgw[gpu]`) or a driver there are none. All of it blocks for milliseconds.
"""

import importlib
import logging
from collections.abc import Collection, Sequence
from typing import Any

from llmgwd.domain.gpus import Gpu, GpuProcess

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA is told which GPUs there are."""
SLACK = 0.1
"""Of what was held: as much may still be in use when it counts as given back. The driver keeps some, and rounds."""


class Gpus:
    """Asks one driver; `driver` has the functions of the module pynvml and is initialised."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def look(self) -> list[Gpu]:
        """All that answer: one that has fallen off the bus is left out."""
        driver = self._driver
        found = []
        try:
            for index in range(driver.nvmlDeviceGetCount()):
                try:
                    found.append(self._gpu(index))
                except driver.NVMLError as error:
                    log.warning("gpu does not answer index=%d why=%s", index, error)
        except driver.NVMLError as error:
            log.warning("the gpu driver does not answer why=%s", error)
        return found

    def _gpu(self, index: int) -> Gpu:
        driver = self._driver
        handle = driver.nvmlDeviceGetHandleByIndex(index)
        memory = driver.nvmlDeviceGetMemoryInfo(handle)
        use = self._if_told("nvmlDeviceGetUtilizationRates", handle)
        # An engine that computes by Vulkan is listed under graphics, and one that does both under both.
        listed = {
            each.pid: GpuProcess(each.pid, each.usedGpuMemory, computes)
            for kind, computes in (
                ("nvmlDeviceGetGraphicsRunningProcesses", False),
                ("nvmlDeviceGetComputeRunningProcesses", True),
            )
            for each in self._if_told(kind, handle) or ()
        }
        return Gpu(
            index,
            driver.nvmlDeviceGetUUID(handle),
            driver.nvmlDeviceGetName(handle),
            memory.total,
            memory.free,
            None if use is None else use.gpu,
            tuple(listed.values()),
        )

    def _if_told(self, function: str, handle: object) -> Any:
        """None where this GPU, its mode or this user's rights do not let the driver tell."""
        try:
            return getattr(self._driver, function)(handle)
        except (self._driver.NVMLError, self._driver.NVMLLibraryMismatchError) as error:  # the latter: an old driver
            log.debug("the gpu driver does not tell %s: %s", function, error)
            return None


def open_gpus() -> Gpus | None:
    """None where there is no driver to ask."""
    try:
        driver = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        driver.nvmlInit()
    except driver.NVMLError as error:
        log.info("gpus are not looked at: %s", error)
        return None
    return Gpus(driver)


def unreleased(before: Sequence[Gpu], now: Sequence[Gpu], pids: Collection[int]) -> dict[int, int]:
    """By number of the GPU, the bytes that those processes, which have ended since `before`, have not given back.

    Memory comes back after the process is gone from the list, and others may take some meanwhile: what counts is memory
    in use that nobody on the list explains. 0 for a GPU that still lists one of them and does not tell what it uses.
    """
    then = {each.uuid: each for each in before}
    left = {}
    for gpu in now:
        if gpu.uuid not in then:
            continue
        held = then[gpu.uuid].held_by(pids)
        more = gpu.unexplained_bytes - then[gpu.uuid].unexplained_bytes
        if any(each.pid in pids for each in gpu.processes):
            left[gpu.number] = gpu.held_by(pids)
        elif held and more > SLACK * held:
            left[gpu.number] = min(more, held)
    return left


def visible(gpus: Sequence[Gpu], wanted: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES names, by UUID, its beginning, or number in the order of the PCI bus."""
    if wanted is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for word in filter(None, (each.strip() for each in wanted.split(","))):
        named = [gpu for gpu in gpus if (gpu.number == int(word) if word.isdigit() else gpu.uuid.startswith(word))]
        if not named:
            break  # as CUDA does: what comes after one that is not there does not count
        found += [gpu for gpu in named if gpu not in found]
    return tuple(found)
