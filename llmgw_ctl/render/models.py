"""Models as a listing and as a page."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from llmgw_ctl.render.screen import Listing, facts, state, text
from llmgw_ctl.render.words import UNKNOWN, counted, percent, short, size, source
from llmgwd.protocol.states import JobKind, ReplicaState
from llmgwd.protocol.views import ModelView, OriginView, ReplicaView, UpdateView


def model_list(models: Sequence[ModelView]) -> RenderableType:
    if not models:
        return text("no models; add one with `llmgw ctl model add NAME --repo ORG/REPO`")
    has_canary = any(model.canary for model in models)
    titles = ["NAME", "STATE", "ENGINE", *(["CANARY"] if has_canary else []), "WEIGHTS"]
    rows = []
    for model in models:
        given = [text(percent(model.canary_share) if model.canary else "")] if has_canary else []
        row = [text(model.name, "bold"), readiness(model), text(model.engine), *given, text(source(model.origin))]
        rows.append(row)
    return Listing(titles, rows)


def update_list(updates: Sequence[UpdateView]) -> RenderableType:
    if not updates:
        return text("no models; add one with `llmgw ctl model add NAME --repo ORG/REPO`")
    rows = []
    for update in updates:
        latest = text(short(update.latest) if update.latest else UNKNOWN, "green" if update.newer else "")
        rows.append([text(update.model, "bold"), text(short(update.revision)), latest, text(update.summary)])
    return Listing(["NAME", "SERVES", "LATEST", "CHANGES"], rows)


def readiness(model: ModelView) -> Text:
    """`ready 1/1`, or what keeps it from being ready."""
    figures = f"{model.ready}/{model.wanted}"
    if model.job and model.job.startswith(f"{JobKind.ADD}-"):
        return text(f"adding {figures}", "yellow")
    if model.ready >= model.wanted:
        return text(f"ready {figures}", "green")
    if in_crash_loop(model):
        return text(f"crash loop {figures}", "red")
    if any(replica.state is ReplicaState.FAILED for replica in model.replicas):
        return text(f"failed {figures}", "red")
    return text(f"starting {figures}", "yellow")


def in_crash_loop(model: ModelView) -> list[ReplicaView]:
    """Its replicas that fail again and again."""
    return [replica for replica in model.replicas if replica.state is ReplicaState.CRASH_LOOP]


def model_page(model: ModelView) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = []
    if model.description:
        rows.append(("about", model.description))
    rows.append(("engine", " ".join((model.engine, *model.engine_args))))
    if model.gpus:
        rows.append(("GPUs", f"{model.gpus} for each replica"))
    if not model.fit_check:
        rows.append(("room", "not checked, as asked for by --no-fit-check"))
    rows.extend(_origin(model.origin))
    if model.previous:
        rows.append(("previous", f"{source(model.previous)}, {size(model.previous.size_bytes)}"))
    if model.changes:
        rows.append(("changed", model.changes))
    if model.aliases:
        rows.append(("aliases", ", ".join(model.aliases)))
    if model.fallbacks:
        rows.append(("fallbacks", ", ".join(model.fallbacks)))
    if model.adapters:
        adapters = [text(f"{adapter.name}  {source(adapter.origin)}") for adapter in model.adapters]
        rows.append(("adapters", Group(*adapters)))
    if model.canary:
        rows.append(("canary", f"{model.canary}, given {percent(model.canary_share)} of the requests"))
    if model.canary_changes:
        rows.append(("differs in", model.canary_changes))
    if model.job:
        rows.append(("job", f"{model.job} is running"))
    if model.declared:
        rows.append(("declared", "in server.yaml, and changed only there"))
    title = Text.assemble(text(model.name, "bold"), "  ", readiness(model))
    parts: list[RenderableType] = [title, facts(rows)]
    if model.replicas:
        parts.append(text(f"  {counted(len(model.replicas), 'replica')}", "dim"))
        parts.extend(_replica(replica) for replica in model.replicas)
    return Group(*parts)


def _origin(origin: OriginView) -> list[tuple[str, RenderableType]]:
    rows: list[tuple[str, RenderableType]] = []
    if origin.repo:
        rows.append(("repository", origin.repo))
        rows.append(("revision", origin.revision or UNKNOWN))
    if origin.path:
        rows.append(("path", origin.path))
    if origin.urls:
        rows.append(("served at", ", ".join(origin.urls)))
    if origin.served_name:
        rows.append(("asked for as", origin.served_name))
    if origin.files:
        rows.append(("files", Group(*(text(file) for file in origin.files))))
    if origin.size_bytes is not None:
        rows.append(("size", size(origin.size_bytes)))
    if origin.content and not origin.repo:
        rows.append(("content", f"sha256 {origin.content}"))
    if origin.quantisation:
        rows.append(("quantisation", origin.quantisation))
    if origin.context_length:
        rows.append(("context", f"{origin.context_length:,} tokens at most"))
    return rows


def memory(replica: ReplicaView) -> str:
    """`8.4 GiB, 1.2 GiB of it its own`: the rest are weights that it maps and others may share."""
    own = (
        "" if replica.own_memory_bytes == replica.memory_bytes else f", {size(replica.own_memory_bytes)} of it its own"
    )
    return f"{size(replica.memory_bytes)}{own}{'' if replica.memory_measured else ', by estimate'}"


def _replica(replica: ReplicaView) -> RenderableType:
    pid = f"  pid {replica.pid}" if replica.pid is not None else ""
    revision = f"  {replica.revision[:7]}" if replica.revision else ""
    head = Text.assemble(
        "    ", text(replica.id, "bold"), "  ", state(replica.state), text(f"  {replica.address}{pid}{revision}")
    )
    rows: list[tuple[str, RenderableType]] = []
    if replica.detail:
        rows.append(("", replica.detail))
    if replica.memory_bytes:
        rows.append(("memory", memory(replica)))
    if replica.gpus:
        on_each = f", {size(replica.gpu_memory_bytes)} on each" if replica.gpu_memory_bytes else ""
        rows.append(("GPUs", f"{', '.join(replica.gpus)}{on_each}"))
    if replica.last_lines:
        rows.append(("said", Group(*(text(line) for line in replica.last_lines))))
    if replica.log:
        rows.append(("log", replica.log))
    return Group(head, facts(rows, indent=6)) if rows else head
