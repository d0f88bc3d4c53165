"""Engines as a listing and as a page, and what a verb would do with one."""

from collections.abc import Sequence
from shlex import join

from rich.console import Group, RenderableType
from rich.text import Text

from llmgw_ctl.render.screen import Listing, facts, text
from llmgw_ctl.render.words import duration, size, source
from llmgwd.protocol.states import WeightsFormat
from llmgwd.protocol.views import EngineView, PreviewView

FORMATS = {
    WeightsFormat.ANY: "any",
    WeightsFormat.GGUF: "GGUF",
    WeightsFormat.FOLDER: "folder of safetensors",
    WeightsFormat.NONE: "of others",
}


def engine_list(engines: Sequence[EngineView]) -> RenderableType:
    rows = [
        [
            text(engine.name, "bold"),
            text("server.yaml" if engine.configured else "preset"),
            text(FORMATS[engine.weights]),
            _program(engine),
            text(", ".join(engine.models)),
        ]
        for engine in engines
    ]
    return Listing(["NAME", "FROM", "WEIGHTS", "PROGRAM", "MODELS"], rows)


def _program(engine: EngineView) -> Text:
    if not engine.program:
        return text("none", "dim")
    if engine.program_path is None:
        return text(f"{engine.program} is not on the path", "red")
    return text(engine.program_path, "green")


def engine_page(engine: EngineView) -> RenderableType:
    where = "from server.yaml" if engine.configured else "a preset"
    return Group(Text.assemble(text(engine.name, "bold"), text(f"  {where}", "dim")), facts(_facts(engine)))


def _facts(engine: EngineView) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = [
        ("command", words(engine.argv) if engine.argv else "none: somebody else runs it"),
        ("program", _program(engine)),
        ("weights", FORMATS[engine.weights]),
        ("asked for", engine.asked_as),
        ("ready", _readiness(engine)),
        ("slots", "not known" if engine.slots is None else str(engine.slots)),
    ]
    if engine.env:
        rows.append(("environment", ", ".join(engine.env)))
    if engine.models:
        rows.append(("models", ", ".join(engine.models)))
    return rows


def words(argv: Sequence[str]) -> str:
    """As one would type it in a shell; what is in braces is not quoted for it."""
    return join(argv).replace("'{", "{").replace("}'", "}")


def _readiness(engine: EngineView) -> str:
    page = f"once {engine.health} answers 200 and a completion is answered" if engine.health else "once it has answered"
    return f"{page}, within {duration(engine.ready_timeout_s)}"


def preview_page(preview: PreviewView) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [("weights", source(preview.origin)), ("found", preview.summary)]
    if preview.newer is False:
        return Group(text("nothing would be started"), facts(rows))
    if preview.changes:
        rows.append(("differs in", preview.changes))
    if preview.files:
        listed = (f"{each.path}  {size(each.size_bytes)}{_on_disk(each.fetch_bytes)}" for each in preview.files)
        rows.append(("files", Group(*(text(line) for line in listed))))
        rows.append(("to fetch", size(preview.fetch_bytes) if preview.fetch_bytes else "nothing, all of it is on disk"))
    rows.extend((name if name != "weights" else "takes", value) for name, value in _facts(preview.engine))
    would = "may" if preview.newer is None else "would"
    return Group(text(f"{preview.name} {would} run on {preview.engine.name}"), facts(rows))


def _on_disk(fetch_bytes: int) -> str:
    return "" if fetch_bytes else ", on disk"
