"""The console that results are drawn on: colour and the terminal's width there, plain lines of any length elsewhere."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmgw_ctl.output import clean

# Wide enough that nothing in a pipe is folded, where a program or grep reads it.
PIPE_WIDTH = 5000
GAP = "  "
# A last column of words may fold down to this many cells before it moves to a line of its own.
ROOM_FOR_WORDS = 36
STYLES = {
    "ready": "green",
    "done": "green",
    "fine": "green",
    "serving": "green",
    "promoted": "green",
    "running": "cyan",
    "starting": "yellow",
    "pending": "dim",
    "draining": "yellow",
    "preparing": "yellow",
    "promoting": "cyan",
    "removing": "yellow",
    "undecided": "yellow",
    "aborted": "yellow",
    "cancelled": "yellow",
    "skipped": "dim",
    "absent": "dim",
    "stopped": "dim",
    "failed": "red",
    "crash_loop": "red",
    "worse": "red",
    "rolled_back": "red",
}


def screen(stream: TextIO) -> Console:
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def draw(*renderables: RenderableType) -> None:
    """Draws results on stdout."""
    console = screen(sys.stdout)
    if console.is_terminal:
        console.print(*renderables, sep="\n")
    else:
        with console.capture() as captured:
            console.print(*renderables, sep="\n")
        lines = captured.get().splitlines()
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


def text(words: str, style: str = "") -> Text:
    return Text(clean(words), style=style)


def state(word: str) -> Text:
    """A state in its colour, in the words of people."""
    return text(word.replace("_", " "), STYLES.get(word, ""))


class Listing:
    """Rows under titles, without lines.

    Where the terminal is too narrow, the last column's words go on a line of their own under the row they belong to.
    """

    def __init__(self, titles: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
        self._titles = titles
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[Text(title, "dim") for title in self._titles], *self._rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(*cells, strict=True)]
        before = sum(width + len(GAP) for width in widths[:-1])
        room = options.max_width - before
        if room >= min(widths[-1], ROOM_FOR_WORDS):
            yield self._table(cells)
            return
        for row in cells:
            line = Text(no_wrap=True, overflow="ellipsis")
            for cell, width in zip(row[:-1], widths, strict=False):
                line.append_text(cell).append(" " * (width - cell.cell_len)).append(GAP)
            line.rstrip()
            yield line
            if row is not cells[0] and row[-1]:
                yield Padding(row[-1], (0, 0, 0, 2))

    def _table(self, cells: Sequence[Sequence[Text]]) -> Table:
        grid = Table.grid(padding=(0, len(GAP), 0, 0))
        for _ in self._titles[:-1]:
            grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for row in cells:
            grid.add_row(*row)
        return grid


def facts(rows: Iterable[tuple[str, RenderableType]], indent: int = 2, names_width: int | None = None) -> Table:
    """A page of names and values; names_width lines it up with what is above and below."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=names_width and names_width + indent)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(" " * indent + name, text(value) if isinstance(value, str) else value)
    return grid
