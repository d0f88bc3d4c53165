"""In what the weights of one origin differ from those of another."""

from llmgwd.domain.catalog import Origin
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
