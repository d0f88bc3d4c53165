"""In what one model, or its weights, differ from another."""

from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.files import compare
from llmgwd.domain.traits import differences


def what_changed(old: Origin, new: Origin) -> str:
    """`weights (1 of 4 files, 3.9 GiB new), chat template, context length 8192 → 32768`; empty when not known."""
    if not old.contents or not new.contents:
        return ""
    changes = compare(old.contents, new.contents)
    if not changes.touch_content:
        return "the same weights"
    kinds = changes.kinds()
    within = differences(old.traits, new.traits) if old.traits and new.traits else []
    return ", ".join([*changes.words(), *(each for each in within if each not in kinds)])


def what_differs(old: Model, new: Model) -> str:
    """In weights, where they come from and how they are served; empty when nothing is known to differ."""
    return ", ".join(filter(None, (what_changed(old.origin, new.origin), how_it_runs_differs(old, new))))


def only_runs_otherwise(stable: Origin, coming: Origin, otherwise: str) -> str:
    """What `coming` is remembered with when it is rolled back: nothing, unless its weights are those of stable.

    They are not to blame then, but how they were run.
    """
    return otherwise if set(stable.keys) & set(coming.keys) else ""


def how_it_runs_differs(old: Model, new: Model) -> str:
    """`repository a/b → c/d, engine llamacpp → llama-server, engine arguments -c 4096 → none`."""
    pairs = (
        ("repository", old.origin.repo, new.origin.repo),
        ("URL", ", ".join(old.origin.urls), ", ".join(new.origin.urls)),
        ("engine", old.engine, new.engine),
        ("engine arguments", " ".join(old.engine_args), " ".join(new.engine_args)),
        ("GPUs", str(old.gpus or ""), str(new.gpus or "")),
    )
    return ", ".join(f"{what} {a or 'none'} → {b or 'none'}" for what, a, b in pairs if (a or "") != (b or ""))
