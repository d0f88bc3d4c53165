"""The routing table: what the catalog, the canaries and the ready replicas make of each name. Pure."""

from collections.abc import Callable, Iterable

from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Model
from llmgwd.engines.adapters import adapter_routes
from llmgwd.engines.replica import Replica
from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute, Routes
from llmgwd.protocol.states import CanaryPhase


def routing_table(
    version: int,
    models: Iterable[Model],
    canaries: Iterable[Canary],
    ready: Callable[[str], Iterable[Replica]],
    key_hashes: tuple[bytes, ...] | None,
) -> Routes:
    """`ready` gives the replicas of a catalog row that answer. A canary is in the table only while it serves (K3)."""
    serving = {canary.model: canary for canary in canaries if canary.phase is CanaryPhase.SERVING}
    routes = []
    for model in models:
        if model.canary_of is not None:
            continue
        canary = serving.get(model.name)
        routes.append(
            ModelRoute(
                name=model.name,
                aliases=model.aliases,
                stable=ArmRoute(model.origin.short, _replicas(ready(model.name))),
                canary=None
                if canary is None
                else CanaryRoute(
                    canary.id,
                    canary.share,
                    ArmRoute(canary.origin.short, _replicas(ready(canary.name))),
                    canary.look_s,
                ),
                fallbacks=model.fallbacks,
                adapters=tuple(adapter.name for adapter in model.adapters),
            )
        )
    return Routes(version, tuple(routes), key_hashes)


def _replicas(replicas: Iterable[Replica]) -> tuple[ReplicaRoute, ...]:
    return tuple(
        ReplicaRoute(
            id=each.id,
            host=each.host,
            port=each.port,
            served_name=each.spec.served_name,
            slots=each.spec.slots or 0,
            tls=each.tls,
            authorization=f"Bearer {each.key}" if each.key else "",
            adapters=adapter_routes(each.spec.engine, each.spec.served_name, each.spec.adapters),
        )
        for each in replicas
    )
