"""Where words go: results to stdout, progress and failures to stderr, each flushed as it is written."""

import os
import sys
from typing import TextIO

import msgspec

from llmgw_ctl.failures import CommandError
from llmgwd.protocol.exit_status import ExitStatus

RED, BOLD, DIM, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
# Replies of models and last words of engines reach the screen; nothing in them may steer the terminal.
_VISIBLE = dict.fromkeys((*range(32), *range(127, 160)), "�") | {ord("\n"): " ", ord("\t"): " "}


def clean(text: str) -> str:
    """The text on one line and without control characters."""
    return text.translate(_VISIBLE)


def is_lively(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def result(text: str) -> None:
    _write(sys.stdout, clean(text))


def document(view: object) -> None:
    """One JSON document, indented for people and fit for programs."""
    _write(sys.stdout, msgspec.json.format(msgspec.json.encode(view), indent=2).decode())


def note(text: str) -> None:
    _write(sys.stderr, _folded(clean(text)))


def complain(error: CommandError, as_document: bool) -> None:
    """What failed and why, then what to do next; also as a document for a program that asked for one."""
    interrupted = error.status is ExitStatus.INTERRUPTED
    label = _coloured("interrupted:", BOLD) if interrupted else _coloured("error:", RED + BOLD)
    _write(sys.stderr, _folded(f"{label} {clean(error.message)}"))
    if error.hint:
        _write(sys.stderr, _folded(f"{_coloured('hint:', DIM)} {clean(error.hint)}"))
    if as_document and not error.documented:
        said = {"code": error.code, "message": error.message, "hint": error.hint, "status": int(error.status)}
        document({"error": said})


def _coloured(text: str, code: str) -> str:
    if is_lively(sys.stderr) and not os.environ.get("NO_COLOR"):
        return f"{code}{text}{PLAIN}"
    return text


def _folded(text: str) -> str:
    """On a terminal, folded between words rather than where the line is full."""
    if not sys.stderr.isatty():
        return text
    from textwrap import fill

    width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
