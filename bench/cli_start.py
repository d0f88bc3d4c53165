"""How long `llmgw ctl model list` takes, round trip and drawing included, against `python -c "import typer"`.

    python bench/cli_start.py [SOCKET]

Without a socket a small daemon answers from a thread. Prints the medians of ten runs of each, taken by turns so that
what else the machine does weighs on both, and exits 1 when the listing takes more than 2.5 times as long.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.ctl.house import well  # noqa: E402
from tests.ctl.scripted_daemon import ScriptedDaemon  # noqa: E402

RUNS = 10
LIMIT = 2.5


def console_program() -> list[str]:
    """The installed program of this interpreter, else the module."""
    beside = Path(sys.executable).with_name("llmgw")
    installed = str(beside) if beside.exists() else shutil.which("llmgw")
    return [installed] if installed else [sys.executable, "-m", "llmgw_ctl"]


def wall_ms(argv: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return (time.perf_counter() - started) * 1000


def compare(socket: Path) -> int:
    listing = [*console_program(), "--socket", str(socket), "ctl", "model", "list"]
    typer = [sys.executable, "-c", "import typer"]
    # Once each before it counts: bytecode and the file cache are there for both.
    wall_ms(listing), wall_ms(typer)
    pairs = [(wall_ms(listing), wall_ms(typer)) for _ in range(RUNS)]
    listing_ms, typer_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = listing_ms / typer_ms
    print(f"model list {listing_ms:.1f} ms, import typer {typer_ms:.1f} ms: {ratio:.2f} times, {LIMIT} allowed")
    return 0 if ratio <= LIMIT else 1


def main() -> int:
    if len(sys.argv) > 1:
        return compare(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder, ScriptedDaemon(Path(folder) / "llmgwd.sock", well()) as daemon:
        return compare(daemon.path)


if __name__ == "__main__":
    os.environ.pop("_LLMGW_COMPLETE", None)
    sys.exit(main())
