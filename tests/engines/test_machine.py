"""The limits that control groups set, read from folders like the kernel's."""

from pathlib import Path

import pytest

from llmgwd.engines.machine import ThisMachine, limits

MIB = 1 << 20


def write(root: Path, files: dict[str, str | int]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


STAT = f"anon 1\ninactive_file {100 * MIB}\nactive_file {50 * MIB}\nslab_reclaimable {10 * MIB}"
STAT_1 = f"cache 5\ntotal_inactive_file {100 * MIB}\ntotal_active_file {50 * MIB}"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/b/memory.current": 5,
            },
            [],
            id="no limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": 1000 * MIB,
                "sys/fs/cgroup/a/b/memory.current": 400 * MIB,
                "sys/fs/cgroup/a/b/memory.stat": STAT,
            },
            [(1000, 760)],
            id="what is cached in files is not used up",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": 1000 * MIB,
                "sys/fs/cgroup/a/b/memory.high": 800 * MIB,
                "sys/fs/cgroup/a/b/memory.current": 400 * MIB,
                "sys/fs/cgroup/a/memory.max": 500 * MIB,
                "sys/fs/cgroup/a/memory.current": 450 * MIB,
            },
            [(800, 400), (500, 50)],
            id="memory.high, and a limit of the group above",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": 1000 * MIB,
                "sys/fs/cgroup/memory.current": 1200 * MIB,
            },
            [(1000, 0)],
            id="a container that is over its limit",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/c\n0::/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 1000 * MIB,
                "sys/fs/cgroup/memory/memory.usage_in_bytes": 400 * MIB,
                "sys/fs/cgroup/memory/memory.stat": STAT_1,
            },
            [(1000, 750)],
            id="the first version, in a container that names the host's group",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/c",
                "sys/fs/cgroup/memory/c/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/c/memory.usage_in_bytes": 400 * MIB,
            },
            [],
            id="the first version without a limit",
        ),
        pytest.param({}, [], id="no control groups"),
    ],
)
def test_limits(tmp_path: Path, files: dict[str, str | int], expected: list[tuple[int, int]]) -> None:
    found = limits(write(tmp_path, files))
    assert [(each.total_bytes // MIB, each.available_bytes // MIB) for each in found] == expected
    assert all(str(tmp_path) in each.what for each in found)


def test_this_machine_has_memory() -> None:
    found = ThisMachine().read()
    assert 0 < found.memories[0].available_bytes < found.memories[0].total_bytes
