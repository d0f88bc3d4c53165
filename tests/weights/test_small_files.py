"""Small files that are read before anything is fetched."""

import json
import threading

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.progress import Cancelled
from llmgwd.weights.small_files import LONGEST_BYTES, read_small
from tests.support.local_hub import Fault, LocalHub

REPO = "org/model"
CONFIG = json.dumps({"model_type": "x"}).encode()


@pytest.fixture
def revision(remote: LocalHub, hub: Hub) -> Snapshot:
    remote.commit(REPO, {"config.json": CONFIG})
    remote.requests.clear()
    return hub.snapshot(REPO)


def test_it_is_read_from_the_hub_and_not_kept(hub: Hub, library: Library, revision: Snapshot) -> None:
    assert read_small(hub, library.layout, revision, revision.files[0]) == CONFIG
    assert not library.layout.root.exists()


def test_one_that_is_on_disk_is_not_asked_for(remote: LocalHub, hub: Hub, library: Library, revision: Snapshot) -> None:
    library.make()
    library.layout.content_of(revision.files[0]).write_bytes(CONFIG)
    remote.close()
    assert read_small(hub, library.layout, revision, revision.files[0]) == CONFIG


def test_a_hub_that_fails_is_asked_again(remote: LocalHub, hub: Hub, library: Library, revision: Snapshot) -> None:
    remote.faults.add(Fault("*/config.json", status=503, times=2))
    said: list[str] = []
    assert read_small(hub, library.layout, revision, revision.files[0], notice=said.append) == CONFIG
    assert len(said) == 2


def test_a_content_that_is_another_is_refused(hub: Hub, library: Library, revision: Snapshot) -> None:
    (found,) = revision.files
    other = RepoFile(found.path, found.size_bytes, blob_id="0" * 40)
    with pytest.raises(LlmgwError, match="has the wrong content: expected git id 0000"):
        read_small(hub, library.layout, revision, other)


def test_a_file_too_long_for_settings_is_not_read(hub: Hub, library: Library, revision: Snapshot) -> None:
    with pytest.raises(LlmgwError, match=r"config\.json has 64\.0 MiB: too long"):
        read_small(hub, library.layout, revision, RepoFile("config.json", LONGEST_BYTES + 1, blob_id="0" * 40))


def test_it_can_be_cancelled_while_the_hub_hangs(
    remote: LocalHub, hub: Hub, library: Library, revision: Snapshot
) -> None:
    remote.faults.add(Fault("*/config.json", hang=True))
    cancelled = threading.Event()

    def cancel_once_asked() -> None:
        remote.requests.wait_for("*/config.json")
        cancelled.set()

    asking = threading.Thread(target=cancel_once_asked)
    asking.start()
    with pytest.raises(Cancelled):
        read_small(hub, library.layout, revision, revision.files[0], cancelled=cancelled)
    asking.join()
