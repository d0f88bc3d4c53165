"""Records of files, and what differs between two sets of them."""

import hashlib

import msgspec
import pytest

from llmgwd.domain.files import Changes, RepoFile, Snapshot, compare, kind_of, size_words


def file(path: str, content: str, size_bytes: int = 1 << 30) -> RepoFile:
    return RepoFile(path, size_bytes, sha256=hashlib.sha256(content.encode()).hexdigest())


SHARDS = [file(f"m-0000{n}-of-00004.gguf", f"shard {n}") for n in (1, 2, 3, 4)]
NEW_SHARD = file(SHARDS[1].path, "better")
TOKENIZER, TEMPLATE = file("tokenizer.json", "t", 10), file("chat_template.jinja", "c", 10)


@pytest.mark.parametrize(
    ("old", "new", "expected", "summary"),
    [
        pytest.param(
            SHARDS,
            [SHARDS[0], NEW_SHARD, *SHARDS[2:]],
            Changes(changed=(NEW_SHARD,), same=(SHARDS[0], *SHARDS[2:])),
            "weights (1 of 4 files, 1.0 GiB new)",
            id="one-shard-of-four",
        ),
        pytest.param(
            SHARDS, SHARDS, Changes(same=tuple(SHARDS)), "no change in the files that are served", id="nothing"
        ),
        pytest.param(
            [SHARDS[0]],
            [file("better-name.gguf", "shard 1")],
            Changes(moved=(file("better-name.gguf", "shard 1"),)),
            "no change in the files that are served",
            id="gguf-renamed",
        ),
        pytest.param(
            [file("tokenizer.json", "t"), file("model.safetensors", "w")],
            [file("tokenizer_old.json", "t"), file("other.safetensors", "w")],
            Changes(moved=(file("tokenizer_old.json", "t"), file("other.safetensors", "w"))),
            "weights (renamed), tokenizer (renamed)",
            id="renamed-in-a-folder",
        ),
        pytest.param(
            [file("1_Dense/config.json", "c"), file("2_Dense/config.json", "c")],
            [file("3_Dense/config.json", "c")],
            Changes(moved=(file("3_Dense/config.json", "c"),), removed=(file("2_Dense/config.json", "c"),)),
            "config removed",
            id="one-of-two-alike-renamed",
        ),
        pytest.param(
            [TOKENIZER, file("generation_config.json", "g")],
            [file("tokenizer.json", "other", 10), TEMPLATE],
            Changes(
                added=(TEMPLATE,),
                removed=(file("generation_config.json", "g"),),
                changed=(file("tokenizer.json", "other", 10),),
            ),
            "tokenizer, chat template, generation config removed",
            id="small-files",
        ),
    ],
)
def test_compare(old: list[RepoFile], new: list[RepoFile], expected: Changes, summary: str) -> None:
    changes = compare(old, new)
    assert changes == expected
    assert changes.summary() == summary


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/./b", "a\0b"])
def test_path_that_could_leave_its_folder_is_no_file(path: str) -> None:
    with pytest.raises(ValueError, match="not a path inside a repository"):
        RepoFile(path, 1)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode({"path": path, "size_bytes": 1}), type=RepoFile)


@pytest.mark.parametrize(("sha256", "blob_id"), [("../x", ""), ("A" * 64, ""), (None, "../../x"), (None, "abc")])
def test_hash_that_could_be_a_path_is_no_hash(sha256: str | None, blob_id: str) -> None:
    with pytest.raises(ValueError, match="impossible"):
        RepoFile("a", 1, sha256=sha256, blob_id=blob_id)


@pytest.mark.parametrize(
    ("repo", "sha"),
    [("../x", "0" * 40), ("a/b/c", "0" * 40), ("a--b", "0" * 40), ("a/..", "0" * 40), ("a/b", "main"), ("a/b", "../x")],
)
def test_name_that_could_be_another_folder_is_no_revision(repo: str, sha: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        Snapshot(repo, sha, ())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a/m-Q4_K_M.gguf", "weights"),
        ("mmproj-F16.gguf", "projector"),
        ("model.safetensors.index.json", "weights"),
        ("tokenizer_config.json", "tokenizer"),
        ("chat_template.json", "chat template"),
        ("generation_config.json", "generation config"),
        ("config.json", "config"),
        ("modeling_x.py", "code"),
        ("LICENSE", "other files"),
    ],
)
def test_kind_of_file(path: str, kind: str) -> None:
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_size_words(size_bytes: int, words: str) -> None:
    assert size_words(size_bytes) == words
