"""What is written down of a replica, and what is known of it again."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llmgwd import process
from llmgwd.domain.catalog import Origin
from llmgwd.domain.room import Needs
from llmgwd.engines.replica import Replica, ReplicaSpec, read, written
from llmgwd.engines.templates import Engine

pytestmark = pytest.mark.anyio
SECRET = {"API_KEY": "sk-very-secret"}


def spec(env: dict[str, str]) -> ReplicaSpec:
    return ReplicaSpec("chat", "chat", Origin(path="/w"), Path("/w"), Engine(("engine",), env=env), ())


def kept(started: ReplicaSpec, tmp_path: Path) -> Replica:
    replica = Replica("chat-1", "chat", started, "127.0.0.1", 1, tmp_path / "log")
    # No process is started: what is written of one is no more than its pid and name.
    replica.process = process.Process(0, "boot:1", process.Mark(tmp_path, "chat-1"), has_ended=True)
    return replica


@pytest.mark.parametrize("env", [SECRET, {}], ids=["with an environment", "without"])
async def test_a_replica_is_known_again_and_its_environment_is_not_written(tmp_path: Path, env: dict[str, str]) -> None:
    record = written(kept(spec(env), tmp_path))
    assert b"secret" not in record.about
    assert b"API_KEY" not in record.about
    again = read(record, [Engine(("other",), env={"A": "b"}), Engine(("engine",), env=env)])
    assert again is not None
    assert again.spec == spec(env)
    assert again.spec.runs_like(spec(env))


SIGHTED = Engine(("engine", "--mmproj", "{projector}"))


def test_a_replica_runs_like_its_weights_want_whatever_its_template_could_name_besides() -> None:
    before = spec({})
    assert replace(before, engine=SIGHTED).runs_like(before)
    sees = replace(before, engine=SIGHTED, projector=Path("/p"))
    assert not sees.runs_like(before)
    assert not sees.runs_like(replace(before, projector=Path("/p")))
    assert not sees.runs_like(replace(sees, projector=Path("/other")))


async def test_a_replica_is_known_again_by_its_projector_and_without_one_from_a_time_that_knew_none(
    tmp_path: Path,
) -> None:
    sees = replace(spec({}), engine=SIGHTED, projector=Path("/p"))
    again = read(written(kept(sees, tmp_path)), [])
    assert again is not None
    assert again.spec.runs_like(sees)
    record = written(kept(spec({}), tmp_path))
    about = msgspec.json.decode(record.about)
    del about["spec"]["projector"]
    earlier = read(msgspec.structs.replace(record, about=msgspec.json.encode(about)), [])
    assert earlier is not None
    assert earlier.spec.runs_like(spec({}))


async def test_what_it_was_given_is_known_again_and_so_is_one_of_before_that_was_written(tmp_path: Path) -> None:
    started = kept(replace(spec({}), gpus=2), tmp_path)
    started.needs, started.gpus = Needs(7, (("sha256-a", 5),), gpus=2, gpu_bytes=3, measured=True), ("GPU-0", "GPU-1")
    record = written(started)
    again = read(record, [])
    assert again is not None
    assert (again.needs, again.gpus, again.spec.gpus) == (started.needs, started.gpus, 2)
    about = msgspec.json.decode(record.about)
    older = {key: value for key, value in about.items() if key not in ("needs", "gpus")}
    older["spec"] = {key: value for key, value in about["spec"].items() if key not in ("gpus", "fit_check")}
    found = read(msgspec.structs.replace(record, about=msgspec.json.encode(older)), [])
    assert found is not None
    assert (found.needs, found.gpus, found.spec) == (None, (), spec({}))


async def test_one_whose_environment_is_gone_from_the_configuration_runs_like_nothing_that_is_there(
    tmp_path: Path,
) -> None:
    again = read(written(kept(spec(SECRET), tmp_path)), [Engine(("engine",))])
    for _ in range(2):
        assert again is not None
        assert not again.spec.runs_like(spec({}))
        assert not again.spec.runs_like(spec({"API_KEY": "sk-another"}))
        again.process = process.Process(0, "boot:1", process.Mark(tmp_path, "chat-1"), has_ended=True)
        again = read(written(again), [])
