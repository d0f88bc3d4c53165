"""A small file of a revision that may not be on disk yet: settings and indexes, which say what is to be fetched."""

from functools import partial

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot, size_words
from llmgwd.weights.content import expected_digest, new_digest
from llmgwd.weights.download import wrong_content
from llmgwd.weights.hub import Hub
from llmgwd.weights.layout import Layout
from llmgwd.weights.patience import Attempts
from llmgwd.weights.progress import NEVER, CancelFlag, Notice, abandonable, check, ignore_notice
from llmgwd.weights.troubles import FAILURES, trouble

LONGEST_BYTES = 64 << 20
"""The index of a model of a trillion parameters takes about 10 MB."""


def read_small(
    hub: Hub,
    layout: Layout,
    revision: Snapshot,
    file: RepoFile,
    *,
    cancelled: CancelFlag = NEVER,
    notice: Notice = ignore_notice,
) -> bytes:
    """Its content as the hub has its hash, from disk or else from the hub, which then is not kept.

    Raises LlmgwError when it cannot be had, is another or too long to be settings, or Cancelled.
    """
    if file.size_bytes > LONGEST_BYTES:
        message = f"{file.path} has {size_words(file.size_bytes)}: too long for what it should be"
        raise LlmgwError("weights_settings", message, hint="name another repository or revision")
    content = layout.content_of(file)
    if content.exists():
        return content.read_bytes()
    attempts = Attempts(hub.patience, cancelled, notice)
    while True:
        try:
            data = abandonable(partial(_from_hub, hub, revision, file, cancelled), cancelled)
            break
        except FAILURES as error:
            attempts.wait_after(trouble(error, hub.asked(revision.repo, revision.sha, file.path)))
    digest = new_digest(file)
    digest.update(data)
    if digest.hexdigest() != expected_digest(file):
        raise wrong_content(file, digest.hexdigest(), hint="ask again; a proxy on the way may change it")
    return data


def _from_hub(hub: Hub, revision: Snapshot, file: RepoFile, cancelled: CancelFlag) -> bytes:
    data = bytearray()
    with hub.open_file(hub.asked(revision.repo, revision.sha, file.path), file, 0, by_xet=False) as body:
        for chunk in body.chunks():
            check(cancelled)
            data += chunk
            if len(data) > file.size_bytes:
                break
    return bytes(data)
