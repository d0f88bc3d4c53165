"""Names that look like something else: through the command line, the gateway, the logs' folder and the metrics."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.house import House, house_on
from tests.support.toy_engine import Behaviour


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house_on(tmp_path_factory.mktemp("house")) as shared:
        (shared.root / "w.gguf").write_bytes(Behaviour().weights())
        yield shared


def add(house: House, name: str, *words: str) -> tuple[int, str]:
    done = house.ctl("model", "add", "--path", str(house.root / "w.gguf"), "--engine", "toy", *words, "--", name)
    return done.returncode, done.stderr


def page(url: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: bytes = reply.read()
        return found


@pytest.mark.parametrize("name", ["acme/chat-8B", "chat.v1", "qwen2.5:7b", "a@b+c", "x" * 120])
def test_a_name_that_is_accepted_works_everywhere(house: House, name: str) -> None:
    assert add(house, name)[0] == 0
    assert [model["name"] for model in house.json("model", "list")] == [name]
    assert house.model(name)["name"] == name
    answer = json.loads(page(f"{house.gateway}/v1/chat/completions", {"model": name, "messages": []}))
    assert answer["model"] == name
    for spelt in (name, quote(name, safe="")):
        assert json.loads(page(f"{house.gateway}/v1/models/{spelt}"))["id"] == name
    assert f'model="{name}"' in page(f"http://127.0.0.1:{house.admin_port}/metrics").decode()
    (log,) = [Path(path) for path in house.json("model", "logs", name)]
    assert log.parent == house.state / "logs"
    assert log.is_file()
    house.ok("model", "remove", name, "--yes")
    assert house.json("model", "list") == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/../b", "a//b", ".", "-x", "模型", "modèle", "x" * 200, "a b", ""]
)
def test_a_name_that_is_refused_is_refused_by_the_one_rule_and_leaves_nothing(house: House, name: str) -> None:
    before = sorted(path for path in house.root.rglob("*") if path.is_dir())
    status, said = add(house, name)
    assert status == 2
    assert "cannot be a model's name: 1 to 120 letters" in " ".join(said.split())
    assert house.json("model", "list") == []
    assert sorted(path for path in house.root.rglob("*") if path.is_dir()) == before


def test_what_a_name_and_an_adapter_spell_alike_is_whoever_was_first(house: House) -> None:
    (house.root / "l.gguf").write_bytes(Behaviour(words="adapted").weights())
    adapter = ("--adapter", f"legal={house.root / 'l.gguf'}")
    assert add(house, "chat", *adapter)[0] == 0
    status, said = add(house, "chat:legal")
    assert (status, "already a model, alias or adapter chat:legal" in said) == (3, True)
    house.ok("model", "remove", "chat", "--yes")
    assert add(house, "chat:legal")[0] == 0
    status, said = add(house, "chat", *adapter)
    assert (status, "already a model, alias or adapter chat:legal" in said) == (3, True)
    assert add(house, "chat", "--alias", "chat:legal")[0] == 3
    house.ok("model", "remove", "chat:legal", "--yes")


def test_aliases_answer_are_listed_and_are_nobody_elses(house: House) -> None:
    assert add(house, "chat", "--alias", "gpt-4", "--alias", "acme/gpt:4")[0] == 0
    listed = [model["id"] for model in json.loads(page(f"{house.gateway}/v1/models"))["data"]]
    assert listed == ["acme/gpt:4", "chat", "gpt-4"]
    for name in listed:
        answer = json.loads(page(f"{house.gateway}/v1/chat/completions", {"model": name, "messages": []}))
        assert answer["model"] == name
    assert house.model("chat")["aliases"] == ["gpt-4", "acme/gpt:4"]
    for name, words in (("gpt-4", ()), ("other", ("--alias", "gpt-4")), ("other", ("--alias", "chat"))):
        status, said = add(house, name, *words)
        assert (status, "already a model, alias or adapter" in said) == (3, True)
    house.ok("model", "remove", "chat", "--yes")
