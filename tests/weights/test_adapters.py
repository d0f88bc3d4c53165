"""Which files are an adapter, in a repository and on disk."""

from pathlib import Path

import pytest

from llmgwd.domain.adapters import AdapterFormat
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.weights.adapters import choose_adapter, find_local_adapter

PEFT = ("adapter_config.json", "adapter_model.safetensors")


def files(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, 1) for path in paths]


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        pytest.param((*PEFT, "README.md", "tokenizer.json"), AdapterFormat.PEFT, PEFT, id="as training leaves it"),
        pytest.param((*PEFT, "lora.gguf"), AdapterFormat.PEFT, PEFT, id="a folder of both"),
        pytest.param((*PEFT, "lora.gguf"), AdapterFormat.GGUF, ("lora.gguf",), id="a file of both"),
        pytest.param(("x.gguf",), AdapterFormat.ANY, ("x.gguf",), id="any: the one file"),
        pytest.param(PEFT, AdapterFormat.ANY, PEFT, id="any: the folder"),
        pytest.param(("base-Q8_0.gguf", "my-lora.gguf"), AdapterFormat.GGUF, ("my-lora.gguf",), id="beside a model"),
        pytest.param(("a-lora-Q8_0.gguf", "a-lora-F16.gguf"), AdapterFormat.GGUF, ("a-lora-F16.gguf",), id="exact"),
        pytest.param(("x.gguf", "mmproj.gguf"), AdapterFormat.GGUF, ("x.gguf",), id="beside a projector"),
    ],
)
def test_what_is_chosen(there: tuple[str, ...], wanted: AdapterFormat, chosen: tuple[str, ...]) -> None:
    assert tuple(file.path for file in choose_adapter(files(*there), wanted, "acme/lora")) == chosen


@pytest.mark.parametrize(
    ("there", "wanted", "code"),
    [
        pytest.param(("x.gguf",), AdapterFormat.PEFT, "adapter_none", id="a file for an engine that takes folders"),
        pytest.param(PEFT, AdapterFormat.GGUF, "adapter_none", id="a folder for an engine that takes files"),
        pytest.param(("README.md",), AdapterFormat.ANY, "adapter_none", id="nothing"),
        pytest.param(("model.safetensors",), AdapterFormat.PEFT, "adapter_none", id="a whole model"),
        pytest.param((PEFT[0], "adapter_model.bin"), AdapterFormat.PEFT, "adapter_unsafe", id="a pickle"),
        pytest.param(("a-lora.gguf", "b-lora.gguf"), AdapterFormat.GGUF, "adapter_ambiguous", id="two"),
    ],
)
def test_what_is_refused(there: tuple[str, ...], wanted: AdapterFormat, code: str) -> None:
    with pytest.raises(LlmgwError) as raised:
        choose_adapter(files(*there), wanted, "acme/lora")
    assert raised.value.code == code
    assert "acme/lora" in raised.value.message


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"four")
    found = find_local_adapter(str(path), AdapterFormat.GGUF)
    assert (found.path, found.folder, found.files, found.size_bytes) == (str(path), str(tmp_path), ("x.gguf",), 4)


def test_a_folder_on_disk_is_given_whole_or_as_its_one_file(tmp_path: Path) -> None:
    for name in (*PEFT, "x-lora.gguf"):
        (tmp_path / name).write_bytes(b"x")
    assert find_local_adapter(str(tmp_path), AdapterFormat.PEFT).path == str(tmp_path)
    assert find_local_adapter(str(tmp_path), AdapterFormat.PEFT).files == PEFT
    assert find_local_adapter(str(tmp_path), AdapterFormat.GGUF).path == str(tmp_path / "x-lora.gguf")


@pytest.mark.parametrize(
    ("path", "wanted", "says"),
    [
        ("x.gguf", AdapterFormat.GGUF, "not an absolute path"),
        ("/no/such.gguf", AdapterFormat.GGUF, "cannot read /no/such.gguf"),
        ("/no/such.gguf", AdapterFormat.PEFT, "a folder with adapter_config.json"),
    ],
)
def test_what_is_not_there(path: str, wanted: AdapterFormat, says: str) -> None:
    with pytest.raises(LlmgwError, match=says):
        find_local_adapter(path, wanted)
