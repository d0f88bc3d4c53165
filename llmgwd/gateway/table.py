"""The routing table: what the daemon said, made ready for look-ups. Never changed, only replaced."""

import time
from collections.abc import Callable
from hmac import compare_digest

import msgspec

from llmgwd.domain.split import parts
from llmgwd.gateway.heads import HeadParser
from llmgwd.gateway.ledger import ArmKey
from llmgwd.gateway.lines import LineKey
from llmgwd.gateway.upstream import Pool
from llmgwd.protocol.link import AdapterRoute, ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute, Routes
from llmgwd.protocol.samples import Arm


class Replica:
    """A running engine: its connections and the requests it has. It outlives the table that brought it."""

    __slots__ = (
        "_busy_s",
        "_held_s",
        "_since",
        "authorization",
        "counts_usage",
        "heard",
        "host_line",
        "id",
        "in_flight",
        "pool",
        "served_as",
        "slots",
    )

    def __init__(self, route: ReplicaRoute, pool: Pool) -> None:
        self.id = route.id
        self.served_as = {each.name: each for each in (AdapterRoute("", route.served_name), *route.adapters)}
        """By adapter, and under no name the model itself: how it is asked for."""
        self.counts_usage = route.counts_usage
        self.slots = route.slots
        self.pool = pool
        self.authorization = b"Authorization: %b\r\n" % route.authorization.encode() if route.authorization else b""
        self.in_flight = 0
        self._held_s = self._busy_s = 0.0
        self._since = time.monotonic()
        self.heard = False
        """Whether it answered something, or went on to, since that was last told."""
        host = f"[{route.host}]" if ":" in route.host else route.host
        self.host_line = b"Host: %b:%d\r\n" % (host.encode("idna" if not host.isascii() else "ascii"), route.port)

    def book_load(self, now: float) -> None:
        """Books the requests it had until `now` of the monotonic clock; to be called before `in_flight` changes."""
        count = self.in_flight
        if count:
            span_s = now - self._since
            self._held_s += count * span_s
            self._busy_s += (count if count < self.slots else self.slots) * span_s
        self._since = now

    def take_load(self, now: float) -> tuple[float, float]:
        """The seconds that requests and slots were in use since this was last asked, summed over them."""
        self.book_load(now)
        taken = (self._held_s, self._busy_s)
        self._held_s = self._busy_s = 0.0
        return taken


class ArmEntry:
    """One arm of a model as the table has it, with the keys of its samples and of its line."""

    __slots__ = ("_turn", "apart_key", "arm", "header", "key", "line", "look_s", "replicas")

    def __init__(
        self,
        arm: Arm,
        key: ArmKey,
        replicas: tuple[Replica, ...],
        look_s: float | None,
        line: LineKey | None = None,
    ) -> None:
        """`look_s` is the length of a look while the arms are compared; None: they are not.

        `line` is the line of those who wait for the same replicas, where that is another's.
        """
        self.arm = arm
        self.key = key
        self.apart_key: ArmKey = (*key[:-1], True)
        """For the requests that are in no comparison of the arms."""
        self.line: LineKey = line or (key[0], arm)
        self.replicas = replicas
        self.look_s = look_s
        self.header = b"x-llmgw-arm: %b\r\nx-llmgw-model: %b\r\n" % (arm.value.encode(), key[0].encode())
        self._turn = 0

    def has_room(self, limit: int, avoiding: frozenset[Replica]) -> bool:
        """Whether a replica has fewer than `limit` requests."""
        return any(replica.in_flight < limit for replica in self.replicas if replica not in avoiding)

    def least_busy(self, avoiding: frozenset[Replica] = frozenset()) -> Replica | None:
        """The replica with the fewest requests; equals take turns, so that none is the one that gets everything."""
        replicas = self.replicas
        if len(replicas) == 1 and not avoiding:
            return replicas[0]
        candidates = [replica for replica in replicas if replica not in avoiding]
        if not candidates:
            return None
        self._turn += 1
        turn = self._turn % len(candidates)
        return min(candidates[turn:] + candidates[:turn], key=_in_flight)


def _in_flight(replica: Replica) -> int:
    return replica.in_flight


class ModelEntry:
    """A model, or an adapter of one, by any of its names."""

    __slots__ = ("adapter", "canary", "canary_id", "fallbacks", "look_s", "name", "share", "share_parts", "stable")

    def __init__(
        self,
        name: str,
        stable: ArmEntry,
        canary: ArmEntry | None,
        route: CanaryRoute | None,
        fallbacks: tuple[str, ...] = (),
        adapter: str = "",
    ) -> None:
        self.name = name
        self.adapter = adapter
        self.stable = stable
        self.canary = canary
        self.fallbacks = fallbacks
        self.canary_id = route.id if route is not None else ""
        self.look_s = route.look_s if route is not None else 30.0
        self.share = route.share if route is not None else 0.0
        self.share_parts = parts(self.share)


class Table:
    """One version of the routes."""

    def __init__(self, routes: Routes, replica: Callable[[ReplicaRoute], Replica]) -> None:
        """`replica` gives the running record of a route, the same one for the same route."""
        self.version = routes.version
        self.key_hashes = routes.key_hashes
        self.heads = HeadParser(forwards_authorization=routes.key_hashes is None)
        self.models: dict[str, ModelEntry] = {}
        entries = [_entry(route, replica) for route in routes.models]
        for route, entry in zip(routes.models, entries, strict=True):
            for alias in route.aliases:
                self.models.setdefault(alias, entry)
        # A name beats another model's alias, and both an adapter's.
        for entry in entries:
            self.models[entry.name] = entry
        for route, entry in zip(routes.models, entries, strict=True):
            for adapter in route.adapters:
                adapted = _adapter_entry(entry, adapter)
                for name in (entry.name, *route.aliases):
                    self.models.setdefault(f"{name}:{adapter}", adapted)
        self.names = tuple(sorted(self.models))
        self.listing = msgspec.json.encode({"object": "list", "data": [describe(name) for name in self.names]})
        arms = [arm for entry in entries for arm in (entry.stable, entry.canary) if arm is not None]
        self.arms_of: dict[Replica, tuple[ArmEntry, ...]] = {}
        for arm in arms:
            for each in arm.replicas:
                self.arms_of[each] = (*self.arms_of.get(each, ()), arm)
        self.replicas = frozenset(self.arms_of)
        self.canaries = frozenset(entry.canary_id for entry in entries if entry.canary_id)

    def admits(self, key_digest: bytes) -> bool:
        """Whether a key of that SHA-256 is known; every hash is compared, in constant time."""
        known = False
        for accepted in self.key_hashes or ():
            known |= compare_digest(accepted, key_digest)
        return known


def describe(name: str) -> dict[str, object]:
    """A model as `/v1/models` shows it: nothing in it changes while the name is served."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "llmgw"}


def _entry(route: ModelRoute, replica: Callable[[ReplicaRoute], Replica]) -> ModelEntry:
    canary_id = route.canary.id if route.canary is not None else ""
    look_s = route.canary.look_s if route.canary is not None and 0 < route.canary.share < 100 else None

    def arm(kind: Arm, arm_route: ArmRoute) -> ArmEntry:
        key = (route.name, kind, arm_route.revision, canary_id, False)
        return ArmEntry(kind, key, tuple(replica(each) for each in arm_route.replicas), look_s)

    stable = arm(Arm.STABLE, route.stable)
    canary = arm(Arm.CANARY, route.canary.arm) if route.canary is not None else None
    return ModelEntry(route.name, stable, canary, route.canary, route.fallbacks)


def _adapter_entry(model: ModelEntry, adapter: str) -> ModelEntry:
    """Stable's replicas that have it, and no canary: it is counted under its own name, and waits in stable's line."""
    stable, name = model.stable, f"{model.name}:{adapter}"
    replicas = tuple(replica for replica in stable.replicas if adapter in replica.served_as)
    arm = ArmEntry(Arm.STABLE, (name, Arm.STABLE, stable.key[2], "", False), replicas, None, stable.line)
    return ModelEntry(name, arm, None, None, model.fallbacks, adapter)
