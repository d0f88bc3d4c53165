"""How busy each arm was, and which requests can have text: what a worker tells of a comparison besides its outcomes."""

import asyncio

import pytest

from llmgwd.gateway.table import Replica
from llmgwd.gateway.upstream import Pool
from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from llmgwd.protocol.samples import Arm, LoadSample, LookSample
from tests.gateway.answers import says
from tests.gateway.client import Client
from tests.gateway.conftest import CANARY_REVISION, STABLE_REVISION, Rig
from tests.gateway.test_queue import Crowd, Gated
from tests.gateway.upstream import Connection, Request

EMBEDDING = {"object": "list", "data": [{"embedding": [0.1]}], "usage": {"prompt_tokens": 3}}


def test_a_replica_knows_how_long_it_had_how_many_requests_and_slots_in_use() -> None:
    loop = asyncio.new_event_loop()
    replica = Replica(ReplicaRoute("r", "127.0.0.1", 1, "chat", slots=2), Pool("127.0.0.1", 1, 1, loop))
    loop.close()
    replica.take_load(100.0)
    for at, in_flight in ((101.0, 1), (103.0, 3), (104.0, 0)):
        replica.book_load(at)
        replica.in_flight = in_flight
    assert replica.take_load(110.0) == (1 * 2 + 3 * 1, 1 * 2 + 2 * 1)
    assert replica.take_load(120.0) == (0.0, 0.0)


def served(rig: Rig, gate: Gated, share: float, canary_slots: int = 0) -> str:
    """A model whose arms are both behind `gate`."""
    name = rig.name()
    port = rig.upstream(gate).port
    stable = ArmRoute(STABLE_REVISION, (ReplicaRoute(f"{name}-s", "127.0.0.1", port, name),))
    canary = ArmRoute(CANARY_REVISION, (ReplicaRoute(f"{name}-c", "127.0.0.1", port, name, slots=canary_slots),))
    rig.publish(ModelRoute(name, stable, canary=CanaryRoute(f"canary-of-{name}", share, canary)))
    return name


def loads_of(rig: Rig, name: str, arm: Arm) -> list[LoadSample]:
    loads = [load for report in rig.daemon.distinct() for load in report.loads]
    return [load for load in loads if (load.canary, load.arm) == (f"canary-of-{name}", arm)]


def test_both_arms_loads_are_told_while_requests_are_under_way(rig: Rig) -> None:
    gate = Gated()
    name = served(rig, gate, share=50, canary_slots=1)
    crowd = Crowd(rig, name, gate)
    crowd.grow(4)
    rig.daemon.wait(lambda: len(loads_of(rig, name, Arm.CANARY)) > 2, "loads of the canary")
    rig.daemon.wait(lambda: len(loads_of(rig, name, Arm.STABLE)) > 2, "loads of stable")
    canary = loads_of(rig, name, Arm.CANARY)
    # Two requests on one slot, once both are there.
    assert canary[-1].busy_s == pytest.approx(canary[-1].held_s / 2)
    assert sum(load.busy_s for load in loads_of(rig, name, Arm.STABLE)) == 0
    assert all(load.look > 0 for load in canary)
    gate.release(4)


@pytest.mark.parametrize("share", [0, 100])
def test_no_load_is_told_where_nothing_is_compared(rig: Rig, share: float) -> None:
    gate = Gated()
    name = served(rig, gate, share)
    gate.release(1)
    with Client(rig.port) as client:
        client.ask("/v1/chat/completions", {"model": name})
    rig.daemon.await_total(name, 1)
    assert loads_of(rig, name, Arm.STABLE) == loads_of(rig, name, Arm.CANARY) == []


def looks_of(rig: Rig, name: str, arm: Arm) -> list[LookSample]:
    looks = [look for report in rig.daemon.distinct() for look in report.looks]
    return [look for look in looks if (look.canary, look.arm) == (f"canary-of-{name}", arm)]


def test_requests_for_embeddings_are_told_apart(rig: Rig) -> None:
    def both(connection: Connection, request: Request) -> None:
        connection.json(EMBEDDING) if "embeddings" in request.line else says()(connection, request)

    name = rig.serve(both, canary=both, share=50)
    with Client(rig.port) as client:
        for _ in range(6):
            client.ask("/v1/embeddings", {"model": name, "input": "x"})
        for _ in range(4):
            client.ask("/v1/chat/completions", {"model": name})
    rig.daemon.await_total(name, 10)
    for arm in Arm:
        looks = looks_of(rig, name, arm)
        assert (sum(look.arrived for look in looks), sum(look.textless for look in looks)) == (5, 3)
