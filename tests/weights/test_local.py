"""Weights that the operator keeps: a file, a set of shards, a folder."""

import hashlib
import threading
from pathlib import Path

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.weights.local import OTHER_FORMATS, LocalWeights, find_local, hash_local
from llmgwd.weights.progress import Cancelled

SHARDS = [f"m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


def folder_of(tmp_path: Path, *paths: str) -> Path:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1234")
    return tmp_path


@pytest.mark.parametrize(
    ("there", "given", "path", "files"),
    [
        pytest.param(["a.gguf", "b.gguf"], "b.gguf", "b.gguf", ["b.gguf"], id="file"),
        pytest.param([*SHARDS, "b.gguf"], SHARDS[0], SHARDS[0], SHARDS, id="set-of-shards"),
        pytest.param(SHARDS, SHARDS[2], SHARDS[0], SHARDS, id="engine-gets-the-first-shard"),
        pytest.param(["weights.bin", "b.gguf"], "weights.bin", "weights.bin", ["weights.bin"], id="file-of-any-kind"),
        pytest.param(
            ["d/m-Q4_K_M.gguf", "d/README.md"], "d", "d/m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"], id="gguf-in-a-folder"
        ),
        pytest.param(
            ["d/config.json", "d/model.safetensors", "d/README.md"],
            "d",
            "d",
            ["config.json", "model.safetensors"],
            id="folder",
        ),
        pytest.param(
            ["d/m-Q4_K_M.gguf", "d/mmproj-F16.gguf"],
            "d",
            "d/m-Q4_K_M.gguf",
            ["m-Q4_K_M.gguf", "mmproj-F16.gguf"],
            id="folder-with-a-projector",
        ),
        pytest.param(
            ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"],
            "m-Q8_0.gguf",
            "m-Q8_0.gguf",
            ["m-Q8_0.gguf", "mmproj-F16.gguf"],
            id="file-with-the-projector-of-the-only-model",
        ),
        pytest.param(
            ["a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-a-F16.gguf", "mmproj-F16.gguf"],
            "a-Q8_0.gguf",
            "a-Q8_0.gguf",
            ["a-Q8_0.gguf", "mmproj-a-F16.gguf"],
            id="file-with-the-projector-of-its-name",
        ),
        pytest.param(
            ["a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-a-F16.gguf", "mmproj-F16.gguf"],
            "b-Q8_0.gguf",
            "b-Q8_0.gguf",
            ["b-Q8_0.gguf"],
            id="file-without-the-projector-of-another",
        ),
        pytest.param(["d/plan.engine"], "d", "d", ["plan.engine"], id="folder-in-a-format-of-its-own"),
    ],
)
def test_local_weights(tmp_path: Path, there: list[str], given: str, path: str, files: list[str]) -> None:
    folder_of(tmp_path, *there)
    folder = tmp_path / given if (tmp_path / given).is_dir() else tmp_path
    expected = LocalWeights(str(tmp_path / path), str(folder), tuple(files), 4 * len(files))
    assert find_local(tmp_path / given) == expected
    assert find_local(str(tmp_path / given)) == expected


@pytest.mark.parametrize(
    ("there", "given", "message"),
    [
        pytest.param([], "no.gguf", "cannot read {root}/no.gguf: No such file or directory", id="not-there"),
        pytest.param(
            [], "", "{root} has no weights: looked for .gguf, .safetensors, .bin, .pt, .pth, {other}", id="empty-folder"
        ),
        pytest.param(
            ["README.md", "config.json"],
            "",
            "{root} has no weights: looked for .gguf, .safetensors, .bin, .pt, .pth, {other}",
            id="folder-without-weights",
        ),
        pytest.param(SHARDS[:2], SHARDS[0], "beside {root}/" + SHARDS[0] + " there is no " + SHARDS[2], id="shard"),
        pytest.param(
            ["a-Q5_K_M.gguf", "b-Q6_K.gguf"],
            "",
            "{root}: there are several models to choose from: a-Q5_K_M: Q5_K_M (4 bytes), b-Q6_K: Q6_K (4 bytes)",
            id="several",
        ),
        pytest.param(
            ["a-Q8_0.gguf", "mmproj-x-F16.gguf", "mmproj-y-F16.gguf"],
            "a-Q8_0.gguf",
            "a-Q8_0 has several projectors: mmproj-x-F16.gguf, mmproj-y-F16.gguf",
            id="several-projectors",
        ),
    ],
)
def test_refused_local_weights(tmp_path: Path, there: list[str], given: str, message: str) -> None:
    folder_of(tmp_path, *there)
    with pytest.raises(LlmgwError) as error:
        find_local(tmp_path / given)
    assert error.value.message == message.format(root=tmp_path, other=", ".join(OTHER_FORMATS))


def test_relative_path_is_refused() -> None:
    with pytest.raises(LlmgwError, match=r"weights/m\.gguf is not an absolute path"):
        find_local("weights/m.gguf")


def test_content_is_hashed_with_its_progress(tmp_path: Path) -> None:
    folder_of(tmp_path, *SHARDS)
    seen: list[tuple[int, int]] = []
    hashed = hash_local(find_local(tmp_path / SHARDS[0]), progress=lambda done, total: seen.append((done, total)))
    assert [(file.path, file.size_bytes, file.sha256) for file in hashed] == [
        (name, 4, hashlib.sha256(b"1234").hexdigest()) for name in SHARDS
    ]
    assert (seen[0], seen[-1]) == ((4, 12), (12, 12))


def test_hashing_can_be_cancelled(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.gguf")
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        hash_local(find_local(tmp_path / "a.gguf"), cancelled=cancelled)


def test_weights_that_are_still_written_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, "a.gguf")
    local = find_local(tmp_path / "a.gguf")

    def write_on(done: int, total: int) -> None:
        if (tmp_path / "a.gguf").stat().st_size == total:
            with (tmp_path / "a.gguf").open("ab") as file:
                file.write(b"more")

    with pytest.raises(LlmgwError, match="was written to while it was read"):
        hash_local(local, progress=write_on)
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(LlmgwError, match="cannot read"):
        hash_local(local)
