"""What weights mean for memory, on record or on disk."""

from pathlib import Path

from gguf import GGUFWriter

from llmgwd.domain.catalog import Origin
from llmgwd.domain.files import RepoFile
from llmgwd.domain.traits import Traits
from llmgwd.weights.weigh import weigh

TRAITS = Traits(context_length=4096, cache_values=100)


def gguf(path: Path) -> Path:
    writer = GGUFWriter(path, arch="llama")
    writer.add_context_length(4096)
    writer.add_block_count(2)
    writer.add_head_count(8)
    writer.add_embedding_length(512)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_what_is_on_record_needs_no_file() -> None:
    files = (RepoFile("m.gguf", 7, sha256="a" * 64), RepoFile("mmproj.gguf", 2, sha256="b" * 64))
    found = weigh(Origin(repo="org/m", files=("m.gguf",), contents=files, traits=TRAITS), None)
    assert found.files == (("sha256-" + "a" * 64, 7), ("sha256-" + "b" * 64, 2))
    assert (found.is_gguf, found.context_length, found.cache_values) == (True, 4096, 100)


def test_a_folder_is_not_mapped() -> None:
    files = (RepoFile("config.json", 1, blob_id="c" * 40), RepoFile("model.safetensors", 7, sha256="a" * 64))
    found = weigh(Origin(repo="org/m", contents=files, traits=TRAITS), None)
    assert (found.size_bytes, found.is_gguf) == (8, False)


def test_what_is_not_on_record_is_read_from_disk(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf")
    found = weigh(Origin(path=str(path)), path)
    assert found.size_bytes == path.stat().st_size
    assert (found.is_gguf, found.context_length, found.cache_values) == (True, 4096, 2 * 8 * (64 + 64))


def test_what_an_older_record_lacks_is_read_from_disk(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf")
    contents = (RepoFile("m.gguf", path.stat().st_size, sha256="a" * 64),)
    origin = Origin(path=str(path), contents=contents, traits=Traits(context_length=4096))
    assert weigh(origin, path).cache_values == 2 * 8 * (64 + 64)


def test_replaced_weights_are_no_longer_the_same_file(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf")
    before = weigh(Origin(path=str(path)), path)
    path.unlink()
    gguf(path)
    assert weigh(Origin(path=str(path)), path).files != before.files


def test_weights_that_are_gone_weigh_nothing(tmp_path: Path) -> None:
    found = weigh(Origin(path=str(tmp_path / "m.gguf")), tmp_path / "m.gguf")
    assert (found.files, found.context_length) == ((), None)
