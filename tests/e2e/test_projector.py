"""Which projector an engine is given: the one that was chosen with the weights, whatever else lies beside them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import REPO, House, house_on, wait_until
from tests.support.toy_engine import ARGV, Behaviour

MODEL = {"chat-Q8_0.gguf": Behaviour().weights()}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Its engine `toy` takes a projector."""
    with house_on(tmp_path, started=False) as fresh:
        fresh.settings["engines"]["toy"]["argv"] = [*ARGV, "--projector", "{projector}"]
        fresh.start()
        yield fresh


def projector(house: House, arm: str = "stable") -> str | None:
    answered, reply = house.ask(headers={"x-llmgw-arm": arm})
    assert answered == arm
    return reply.get("projector")


def test_a_projector_that_changed_alone_is_tried_by_a_canary_and_is_what_its_engine_is_given(house: House) -> None:
    house.hub.commit(REPO, {**MODEL, "mmproj-F16.gguf": b"one", "mmproj-F32.gguf": b"another"})
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert projector(house) == "one"

    house.hub.commit(REPO, {"mmproj-F16.gguf": b"two"})
    house.ok("model", "canary", "chat")
    canary = house.canary()
    assert canary is not None
    assert canary["changes"].startswith("projector (1 of 1 files")
    assert (projector(house), projector(house, "canary")) == ("one", "two")
    house.ok("model", "promote", "chat")
    assert projector(house) == "two"

    # Another quantisation with another projector joins the same folder; neither is this model's.
    house.hub.commit(REPO, {"chat-Q4_0.gguf": Behaviour(words="small").weights()})
    house.ok("model", "add", "small", "--repo", REPO, "--file", "*[4F][_3][02]*", "--engine", "toy")
    assert house.ask("small")[1]["projector"] == "another"

    served = house.engine_pids()
    house.stop(signal.SIGKILL)
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)
    assert house.engine_pids() == served
    assert projector(house) == "two"


def test_weights_without_a_projector_leave_the_option_out(house: House) -> None:
    house.hub.commit(REPO, MODEL)
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy")
    assert projector(house) is None


def test_local_weights_bring_the_projector_that_belongs_to_them(house: House) -> None:
    folder = house.root / "own"
    folder.mkdir()
    (folder / "chat-Q8_0.gguf").write_bytes(Behaviour().weights())
    house.ok("model", "add", "chat", "--path", str(folder), "--engine", "toy")
    assert projector(house) is None
    (folder / "mmproj-F16.gguf").write_bytes(b"own")
    house.ok("model", "canary", "chat", "--path", str(folder), "--percent", "100")
    assert projector(house, "canary") == "own"
    house.ok("model", "abort", "chat")
    house.ok("model", "canary", "chat", "--path", str(folder / "chat-Q8_0.gguf"), "--again")
    assert projector(house, "canary") == "own"


def test_a_declared_model_brings_the_projector_that_belongs_to_it(house: House) -> None:
    path = house.root / "base-Q8_0.gguf"
    path.write_bytes(Behaviour().weights())
    (house.root / "mmproj-base-F16.gguf").write_bytes(b"declared")
    (house.root / "mmproj-other-F16.gguf").write_bytes(b"not this one")
    (house.root / "other-Q8_0.gguf").write_bytes(b"")
    house.stop()
    house.settings["models"] = [{"name": "base", "path": str(path), "engine": "toy"}]
    house.start()
    wait_until(lambda: house.model("base")["ready"] == 1)
    assert house.ask("base")[1]["projector"] == "declared"
