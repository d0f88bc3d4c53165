"""What is written down of a replica, and what is known of it again."""

from pathlib import Path

import pytest

from llmgwd import process
from llmgwd.domain.catalog import Origin
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
