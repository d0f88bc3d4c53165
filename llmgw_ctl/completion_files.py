"""`python -m llmgw_ctl.completion_files [FOLDER]` writes the shells' completion files, as Typer words them.

The same scripts come from `llmgw --show-completion`; packages install these files where shells look for them.
"""

import os
import subprocess
import sys
from pathlib import Path

from llmgw_ctl.main import COMPLETE_VARIABLE, PROGRAM

FOLDER = Path(__file__).resolve().parent.parent / "completions"
NAMES = {"bash": f"{PROGRAM}.bash", "zsh": f"_{PROGRAM}", "fish": f"{PROGRAM}.fish"}


def script(shell: str) -> str:
    """What the program itself gives a shell that asks it for its completion script."""
    asked = os.environ | {COMPLETE_VARIABLE: f"source_{shell}"}
    argv = [sys.executable, "-m", "llmgw_ctl"]
    said = subprocess.run(argv, env=asked, check=True, capture_output=True, text=True).stdout
    return said.strip() + "\n"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shell, name in NAMES.items():
        (folder / name).write_text(script(shell))


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
