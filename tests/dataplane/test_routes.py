from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from llmgwd.dataplane.routes import routing_table
from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Adapter, Model, Origin, candidate
from llmgwd.engines.adapters import AdapterOnDisk
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.replica import Replica, ReplicaSpec
from llmgwd.protocol.link import AdapterRoute, ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from llmgwd.protocol.states import CanaryPhase

# A replica holds a cancel scope, which is made inside an event loop.
pytestmark = pytest.mark.anyio
OLD, NEW = Origin(repo="a/b", revision="1" * 40), Origin(repo="a/b", revision="2" * 40)
CHAT = Model(name="chat", origin=OLD, aliases=("gpt",))
ROW = candidate(CHAT, NEW, None)
CANARY = Canary("c1", "chat", NEW, OLD, 20, "ann", datetime(2026, 1, 1, tzinfo=UTC), CanaryPhase.SERVING)


def ready(owner: str) -> list[Replica]:
    row = ROW if owner == ROW.name else CHAT
    spec = ReplicaSpec(owner, row.served_name, row.origin, Path("/w"), PRESETS["llamacpp"], ())
    return [Replica(f"{owner}-1", owner, spec, "127.0.0.1", 20001, Path("/log"))]


def replica(owner: str) -> tuple[ReplicaRoute, ...]:
    return (ReplicaRoute(f"{owner}-1", "127.0.0.1", 20001, "chat", slots=4),)


async def test_a_serving_canary_is_an_arm_of_its_model_and_no_name_of_its_own() -> None:
    table = routing_table(7, [CHAT, ROW], [CANARY], ready, None)
    assert table.version == 7
    assert table.models == (
        ModelRoute(
            "chat",
            stable=ArmRoute("1111111", replica("chat")),
            aliases=("gpt",),
            canary=CanaryRoute("c1", 20, ArmRoute("2222222", replica("chat-canary"))),
        ),
    )


async def test_fallbacks_and_adapters_are_the_models() -> None:
    adapted = msgspec.structs.replace(CHAT, fallbacks=("base",), adapters=(Adapter("legal", OLD),))

    def having(owner: str) -> list[Replica]:
        (one,) = ready(owner)
        one.spec = replace(one.spec, adapters=(AdapterOnDisk("legal", Path("/l.gguf")),))
        return [one]

    (route,) = routing_table(1, [adapted, ROW], [CANARY], having, None).models
    assert (route.fallbacks, route.adapters) == (("base",), ("legal",))
    asked = (AdapterRoute("legal", "chat", (("lora", '[{"id":0,"scale":1.0}]'),)),)
    assert route.stable.replicas[0].adapters == asked
    assert route.canary is not None
    assert route.canary.arm.replicas[0].adapters == asked


@pytest.mark.parametrize("phase", [phase for phase in CanaryPhase if phase is not CanaryPhase.SERVING])
async def test_a_canary_in_any_other_phase_is_not_in_the_table(phase: CanaryPhase) -> None:
    table = routing_table(1, [CHAT, ROW], [msgspec.structs.replace(CANARY, phase=phase)], ready, None)
    assert table.models[0].canary is None


async def test_a_model_without_a_ready_replica_is_still_known() -> None:
    table = routing_table(1, [CHAT], [], lambda owner: [], (b"hash",))
    assert table.models == (ModelRoute("chat", stable=ArmRoute("1111111"), aliases=("gpt",)),)
    assert table.key_hashes == (b"hash",)
