"""Without the hub: what is on disk stands in for what it would say."""

from huggingface_hub import constants

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import Snapshot
from llmgwd.weights.library import Library

SHORTEST_PREFIX = 7


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the hub anything."""
    return bool(constants.HF_HUB_OFFLINE)


def find_on_disk(library: Library, repo: str, revision: str | None) -> Snapshot:
    """The revision, by its commit or the first seven digits or more of it; None: the one that came last.

    Holds the files that are on disk, not all that the repository has. Raises LlmgwError `hub_offline`.
    """
    there = [each for each in library.newest_first() if each.repo == repo]
    if revision is None:
        found = there[:1]
    elif len(revision) < SHORTEST_PREFIX:
        found = []
    else:
        found = [each for each in there if each.sha.startswith(revision)]
    if len(found) == 1:
        return found[0]
    what = repo if revision is None else f"{repo} at {revision}"
    on_disk = ", ".join(each.sha[:SHORTEST_PREFIX] for each in there) or "none"
    raise LlmgwError(
        "hub_offline",
        f"HF_HUB_OFFLINE is set and {what} is not on disk",
        hint=f"name a revision that is (on disk: {on_disk}), or start llmgwd without HF_HUB_OFFLINE",
    )
