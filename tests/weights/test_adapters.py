"""Which files are an adapter, in a repository and on disk."""

from pathlib import Path

import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.files import RepoFile
from llmgwd.protocol.states import WeightsFormat
from llmgwd.weights.adapters import choose_adapter, find_local_adapter

PEFT = ("adapter_config.json", "adapter_model.safetensors")


def files(*paths: str) -> list[RepoFile]:
    return [RepoFile(path, 1) for path in paths]


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        pytest.param((*PEFT, "README.md", "tokenizer.json"), WeightsFormat.FOLDER, PEFT, id="as training leaves it"),
        pytest.param((*PEFT, "lora.gguf"), WeightsFormat.FOLDER, PEFT, id="a folder of both"),
        pytest.param((*PEFT, "lora.gguf"), WeightsFormat.GGUF, ("lora.gguf",), id="a file of both"),
        pytest.param(("x.gguf",), WeightsFormat.ANY, ("x.gguf",), id="any: the one file"),
        pytest.param(PEFT, WeightsFormat.ANY, PEFT, id="any: the folder"),
        pytest.param(("base-Q8_0.gguf", "my-lora.gguf"), WeightsFormat.GGUF, ("my-lora.gguf",), id="beside a model"),
        pytest.param(("a-lora-Q8_0.gguf", "a-lora-F16.gguf"), WeightsFormat.GGUF, ("a-lora-F16.gguf",), id="exact"),
        pytest.param(("x.gguf", "mmproj.gguf"), WeightsFormat.GGUF, ("x.gguf",), id="beside a projector"),
    ],
)
def test_what_is_chosen(there: tuple[str, ...], wanted: WeightsFormat, chosen: tuple[str, ...]) -> None:
    assert tuple(file.path for file in choose_adapter(files(*there), wanted, "acme/lora")) == chosen


@pytest.mark.parametrize(
    ("there", "wanted", "code"),
    [
        pytest.param(("x.gguf",), WeightsFormat.FOLDER, "adapter_none", id="a file for an engine that takes folders"),
        pytest.param(PEFT, WeightsFormat.GGUF, "adapter_none", id="a folder for an engine that takes files"),
        pytest.param(("README.md",), WeightsFormat.ANY, "adapter_none", id="nothing"),
        pytest.param(("model.safetensors",), WeightsFormat.FOLDER, "adapter_none", id="a whole model"),
        pytest.param((PEFT[0], "adapter_model.bin"), WeightsFormat.FOLDER, "adapter_unsafe", id="a pickle"),
        pytest.param(("a-lora.gguf", "b-lora.gguf"), WeightsFormat.GGUF, "adapter_ambiguous", id="two"),
    ],
)
def test_what_is_refused(there: tuple[str, ...], wanted: WeightsFormat, code: str) -> None:
    with pytest.raises(LlmgwError) as raised:
        choose_adapter(files(*there), wanted, "acme/lora")
    assert raised.value.code == code
    assert "acme/lora" in raised.value.message


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"four")
    found = find_local_adapter(str(path), WeightsFormat.GGUF)
    assert (found.path, found.folder, found.files, found.size_bytes) == (str(path), str(tmp_path), ("x.gguf",), 4)


def test_a_folder_on_disk_is_given_whole_or_as_its_one_file(tmp_path: Path) -> None:
    for name in (*PEFT, "x-lora.gguf"):
        (tmp_path / name).write_bytes(b"x")
    assert find_local_adapter(str(tmp_path), WeightsFormat.FOLDER).path == str(tmp_path)
    assert find_local_adapter(str(tmp_path), WeightsFormat.FOLDER).files == PEFT
    assert find_local_adapter(str(tmp_path), WeightsFormat.GGUF).path == str(tmp_path / "x-lora.gguf")


@pytest.mark.parametrize(
    ("path", "wanted", "says"),
    [
        ("x.gguf", WeightsFormat.GGUF, "not an absolute path"),
        ("/no/such.gguf", WeightsFormat.GGUF, "cannot read /no/such.gguf"),
        ("/no/such.gguf", WeightsFormat.FOLDER, "a folder with adapter_config.json"),
    ],
)
def test_what_is_not_there(path: str, wanted: WeightsFormat, says: str) -> None:
    with pytest.raises(LlmgwError, match=says):
        find_local_adapter(path, wanted)
