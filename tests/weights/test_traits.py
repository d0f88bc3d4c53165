"""What weights say of themselves, read from real files, and from the start of what the hub has."""

import json
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, LlamaFileType

from llmgwd.domain.files import RepoFile, Snapshot
from llmgwd.domain.traits import Traits, differences
from llmgwd.weights.fetch import fetch
from llmgwd.weights.gguf_header import FILE_TYPES
from llmgwd.weights.hub import Hub
from llmgwd.weights.library import Library
from llmgwd.weights.progress import Cancelled
from llmgwd.weights.traits import coming_traits, traits_in
from tests.support.local_hub import Fault, LocalHub

REPO = "org/model"
GGUF = "m-Q4_K_M.gguf"
MIB = 1 << 20


def gguf(path: Path, *, context: int = 8192, template: str | None = "{{ x }}", tokens: int = 1000) -> Path:
    """A small file as llama.cpp's own writer makes it, with 8 MiB in place of tensors."""
    writer = GGUFWriter(path, arch="llama")
    writer.add_context_length(context)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list([f"token {number}" for number in range(tokens)])
    writer.add_token_scores([0.5] * tokens)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(os.urandom(8 * MIB))
    return path


def in_folder(path: Path) -> Traits:
    found = traits_in(path.parent, [RepoFile(path.name, path.stat().st_size)])
    assert found is not None
    return found


def test_gguf_metadata(tmp_path: Path) -> None:
    found = in_folder(gguf(tmp_path / GGUF))
    assert (found.architecture, found.quantisation, found.context_length) == ("llama", "Q4_K_M", 8192)
    assert differences(found, in_folder(gguf(tmp_path / "same.gguf"))) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"context": 32768}, ["context length 8192 → 32768"]),
        ({"template": "{{ y }}"}, ["chat template"]),
        ({"template": None}, ["chat template"]),
        ({"tokens": 1001}, ["tokenizer"]),
        ({"tokens": 2, "context": 16, "template": ""}, ["tokenizer", "chat template", "context length 8192 → 16"]),
    ],
    ids=["context", "template", "template-gone", "tokens", "all"],
)
def test_what_differs_within_gguf_files(tmp_path: Path, change: dict[str, Any], expected: list[str]) -> None:
    old, new = gguf(tmp_path / "old.gguf"), gguf(tmp_path / "new.gguf", **change)
    assert differences(in_folder(old), in_folder(new)) == expected


def test_file_types_are_those_of_llama_cpp() -> None:
    theirs = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    assert FILE_TYPES.items() <= theirs.items()


@pytest.mark.parametrize("length", [0, 3, 8, 30, 200, 5000])
def test_a_file_that_is_cut_says_nothing(tmp_path: Path, length: int) -> None:
    path = gguf(tmp_path / GGUF)
    os.truncate(path, length)
    assert traits_in(tmp_path, [RepoFile(GGUF, length)]) is None


NESTED_ARRAYS = struct.pack("<4sIQQQcI", b"GGUF", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 5000


@pytest.mark.parametrize(
    "start", [b"GGUF\x03\0\0\0" + b"\xff" * 64, b"{}", b"GGUF\x63\0\0\0" + bytes(64), NESTED_ARRAYS]
)
def test_what_is_no_gguf_file_says_nothing(tmp_path: Path, start: bytes) -> None:
    (tmp_path / GGUF).write_bytes(start)
    assert traits_in(tmp_path, [RepoFile(GGUF, len(start))]) is None
    assert traits_in(tmp_path, [RepoFile("gone.gguf", 1)]) is None


CONFIG = {"model_type": "qwen2", "max_position_embeddings": 32768, "torch_dtype": "bfloat16"}
TOKENIZER = {"model_max_length": 32768, "chat_template": "{{ x }}"}


def folder(remote: LocalHub, **changed: object) -> None:
    contents = {"config.json": CONFIG, "tokenizer_config.json": TOKENIZER, "tokenizer.json": {"a": 1}}
    written = {path: json.dumps(value) for path, value in {**contents, **changed}.items()}
    remote.commit(REPO, {"model.safetensors": b"weights", **written})


@pytest.mark.parametrize(
    ("path", "changed", "expected"),
    [
        ("config.json", {**CONFIG, "max_position_embeddings": 4096}, ["context length 32768 → 4096"]),
        (
            "config.json",
            {**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}},
            ["quantisation bfloat16 → awq 4 bit"],
        ),
        ("config.json", {"text_config": CONFIG, "model_type": "qwen2_vl"}, ["architecture qwen2 → qwen2_vl"]),
        ("config.json", ["odd"], []),
        ("tokenizer_config.json", {**TOKENIZER, "chat_template": "{{ y }}"}, ["chat template"]),
        ("tokenizer_config.json", {"model_max_length": 32768}, ["chat template"]),
        ("tokenizer_config.json", {**TOKENIZER, "model_max_length": 1}, ["tokenizer"]),
        ("tokenizer.json", {"a": 2}, ["tokenizer"]),
        ("chat_template.jinja", "{{ y }}", ["chat template"]),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(("json", "jinja")) else "",
)
def test_what_differs_within_folders(
    remote: LocalHub, hub: Hub, library: Library, path: str, changed: object, expected: list[str]
) -> None:
    folder(remote)
    old = hub.snapshot(REPO)
    before = traits_in(fetch(hub, old, old.files, library), old.files)
    folder(remote, **{path: changed})
    new = hub.snapshot(REPO)
    after = coming_traits(hub, library.layout, new, new.files, threading.Event())
    assert before is not None and after is not None
    assert differences(before, after) == expected
    assert after == traits_in(fetch(hub, new, new.files, library), new.files)


@pytest.fixture
def coming(remote: LocalHub, hub: Hub, tmp_path: Path) -> Snapshot:
    remote.commit(REPO, {GGUF: gguf(tmp_path / "new.gguf", context=4096)})
    return hub.snapshot(REPO)


def test_only_the_start_of_a_file_on_the_hub_is_read(
    remote: LocalHub, hub: Hub, library: Library, coming: Snapshot
) -> None:
    remote.faults.add(Fault("/cdn/*", hang_after=MIB))
    found = coming_traits(hub, library.layout, coming, coming.files, threading.Event())
    assert found is not None
    assert found.context_length == 4096
    assert not library.layout.root.exists()


def test_what_is_on_disk_is_not_asked_for(remote: LocalHub, hub: Hub, library: Library, coming: Snapshot) -> None:
    fetch(hub, coming, coming.files, library)
    remote.requests.clear()
    found = coming_traits(hub, library.layout, coming, coming.files, threading.Event())
    assert found == traits_in(library.folder(REPO, coming.sha), coming.files)
    assert remote.requests.matching() == []


@pytest.mark.parametrize(
    "fault", [Fault("/cdn/*", status=503), Fault("/cdn/*", drop_after=2000), Fault("/org/*", status=429)]
)
def test_a_hub_that_does_not_give_the_start_leaves_it_unknown(
    remote: LocalHub, hub: Hub, library: Library, coming: Snapshot, fault: Fault
) -> None:
    remote.faults.add(fault)
    assert coming_traits(hub, library.layout, coming, coming.files, threading.Event()) is None


def test_reading_the_start_can_be_cancelled(hub: Hub, library: Library, coming: Snapshot) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        coming_traits(hub, library.layout, coming, coming.files, cancelled)


def llama(path: Path, heads_kept: int | list[int] | None, **lengths: int) -> Path:
    writer = GGUFWriter(path, arch="llama")
    writer.add_context_length(4096)
    writer.add_block_count(4)
    writer.add_head_count(8)
    writer.add_embedding_length(512)
    if heads_kept is not None:
        writer.add_head_count_kv(heads_kept)
    if lengths:
        writer.add_key_length(lengths["key"])
        writer.add_value_length(lengths["value"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("heads_kept", "lengths", "values"),
    [
        pytest.param(2, {}, 4 * 2 * (64 + 64), id="grouped heads"),
        pytest.param(None, {}, 4 * 8 * (64 + 64), id="every head keeps its own"),
        pytest.param([2, 0, 2, 0], {}, 4 * (64 + 64), id="layers that differ"),
        pytest.param(1, {"key": 576, "value": 512}, 4 * (576 + 512), id="lengths of their own"),
    ],
)
def test_what_llama_cpp_keeps_of_a_token(
    tmp_path: Path, heads_kept: int | list[int] | None, lengths: dict[str, int], values: int
) -> None:
    assert in_folder(llama(tmp_path / GGUF, heads_kept, **lengths)).cache_values == values


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, 4 * 8 * 2 * 64),
        (
            {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128},
            4 * 2 * 2 * 128,
        ),
        ({"num_hidden_layers": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 8}, 4 * 576),
        ({"text_config": {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 128}}, 4 * 2 * 2 * 128),
        ({"num_hidden_layers": 4}, None),
        ({"model_type": "odd", "num_hidden_layers": "four"}, None),
    ],
    ids=["all-heads", "grouped", "latent", "nested", "no-heads", "odd"],
)
def test_what_a_folders_engine_keeps_of_a_token(tmp_path: Path, config: dict[str, Any], values: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"w")
    files = [RepoFile(path.name, path.stat().st_size, blob_id="0" * 40) for path in tmp_path.iterdir()]
    found = traits_in(tmp_path, files)
    assert found is not None
    assert found.cache_values == values
