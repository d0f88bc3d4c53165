"""What processes take of memory, measured on real ones."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgwd.engines.footprint import measure, private_now

MIB = 1 << 20
FILE_MIB, OWN_MIB = 48, 32
PROGRAM = """
import mmap, os, sys
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(mapped[at] for at in range(0, len(mapped), 4096))
own = bytearray(os.urandom(1 << 20) * int(sys.argv[2]))
child = os.fork() if sys.argv[3] == "forks" else -1
print("up" if child else "child up", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(weights: Path, how: str) -> Iterator[int]:
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, weights, str(OWN_MIB), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdin and running.stdout
    try:
        for _ in range(2 if how == "forks" else 1):
            running.stdout.readline()
        yield running.pid
    finally:
        running.stdin.close()
        running.wait(10)
        running.stdout.close()


def weights_in(folder: Path) -> Path:
    path = folder / "w.gguf"
    path.write_bytes(os.urandom(FILE_MIB * MIB))
    return path


def test_mapped_weights_are_told_from_what_is_private(tmp_path: Path) -> None:
    with process(weights_in(tmp_path), "alone") as pid:
        taken = measure(pid, tmp_path)
        assert taken is not None
        assert taken.mapped_bytes == FILE_MIB * MIB
        assert OWN_MIB <= taken.private_bytes / MIB < OWN_MIB + 24
        assert OWN_MIB <= private_now(pid) / MIB < OWN_MIB + 24


def test_what_a_group_shares_counts_once(tmp_path: Path) -> None:
    with process(weights_in(tmp_path), "forks") as pid:
        taken = measure(pid, tmp_path)
        assert taken is not None
        assert taken.mapped_bytes == FILE_MIB * MIB
        assert OWN_MIB <= taken.private_bytes / MIB < OWN_MIB + 24


def test_a_file_that_others_map_as_well_stays_mapped_weights(tmp_path: Path) -> None:
    path = weights_in(tmp_path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as here:
        sum(here[at] for at in range(0, len(here), 4096))
        with process(path, "alone") as pid:
            taken = measure(pid, tmp_path)
    assert taken is not None
    assert taken.mapped_bytes == FILE_MIB * MIB


def test_of_a_process_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    with process(weights_in(tmp_path), "alone") as pid:
        pass
    assert measure(pid, tmp_path) is None
    assert private_now(pid) == 0
