"""Adapters: asked for under their model's names, answered by stable, in no comparison."""

import json
import threading
from functools import partial

import pytest

from llmgwd.protocol.link import AdapterRoute, ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import answer, says
from tests.gateway.client import Client, Reply, ask, request
from tests.gateway.conftest import CANARY_REVISION, STABLE_REVISION, Rig
from tests.gateway.upstream import Connection, Request, Script, Upstream

CHAT = "/v1/chat/completions"


def as_name(name: str, adapter: str) -> AdapterRoute:
    """As vLLM has them."""
    return AdapterRoute(adapter, f"{name}:{adapter}")


def as_field(name: str, adapter: str) -> AdapterRoute:
    """As llama.cpp has them."""
    return AdapterRoute(adapter, name, (("lora", '[{"id":0,"scale":1.0}]'),))


def with_adapters(route: ReplicaRoute, *adapters: AdapterRoute) -> ReplicaRoute:
    return ReplicaRoute(route.id, route.host, route.port, route.served_name, route.counts_usage, adapters=adapters)


def serve(rig: Rig, engine: Script | Upstream, *, field: bool = False, canary: Script | None = None) -> str:
    """A model with the adapter `legal` and the alias `NAME-alias`; all its requests go to the canary if it has one."""
    name = rig.name()
    adapter = (as_field if field else as_name)(name, "legal")
    stable = ArmRoute(STABLE_REVISION, (with_adapters(rig.replica(engine, name), adapter),))
    canary_route = None
    if canary is not None:
        # It becomes the model's once it is promoted, and has them loaded by then.
        arm = ArmRoute(CANARY_REVISION, (with_adapters(rig.replica(canary, name), adapter),))
        canary_route = CanaryRoute(f"canary-of-{name}", 100, arm)
    rig.publish(ModelRoute(name, stable, (f"{name}-alias",), canary_route, adapters=("legal",)))
    return name


def good(reply: Reply) -> Reply:
    assert reply.status == 200, reply.body
    return reply


def test_adapters_are_listed_under_each_name_of_their_model(rig: Rig) -> None:
    name = serve(rig, says())
    listed = [model["id"] for model in ask(rig.port, "/v1/models").json["data"]]
    assert listed == sorted([name, f"{name}-alias", f"{name}:legal", f"{name}-alias:legal"])
    assert ask(rig.port, f"/v1/models/{name}:legal").json["id"] == f"{name}:legal"


@pytest.mark.parametrize("asked", ["{}:legal", "{}-alias:legal"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_knows_adapters_by_name_gets_its_own(rig: Rig, asked: str, stream: bool) -> None:
    engine = rig.upstream(says())
    name = serve(rig, engine)
    asked = asked.format(name)
    reply = good(ask(rig.port, CHAT, {"model": asked, "stream": stream}))
    assert engine.requests[-1].json["model"] == f"{name}:legal"
    assert reply.headers["x-llmgw-model"] == f"{name}:legal"
    first = reply.body.split(b"\n\n")[0].removeprefix(b"data: ")
    assert json.loads(first)["model"] == asked


def test_an_engine_that_wants_a_field_gets_it_and_its_own_name(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = serve(rig, engine, field=True)
    assert good(ask(rig.port, CHAT, {"model": f"{name}:legal", "n": 1})).json["model"] == f"{name}:legal"
    assert engine.requests[-1].json == {"model": name, "n": 1, "lora": [{"id": 0, "scale": 1.0}]}
    assert good(ask(rig.port, CHAT, {"model": name})).json["model"] == name
    assert engine.requests[-1].json == {"model": name}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"lora": [{"id": 3}], "model": "%b"}', id="the client's own"),
        pytest.param(b'{"l\\u006fra": 1, "model": "%b"}', id="spelt with an escape"),
        pytest.param(b'{"x": {"lora": 2}, "model": "%b"}', id="one inside another member"),
        pytest.param(b'{"x": "\\"lora\\":", "model": "%b"}', id="one in a text"),
    ],
)
def test_the_field_is_set_whatever_the_body_looks_like(rig: Rig, body: bytes) -> None:
    engine = rig.upstream(says())
    name = serve(rig, engine, field=True)
    good(ask(rig.port, CHAT, body % f"{name}:legal".encode()))
    sent = engine.requests[-1].json
    assert (sent["model"], sent["lora"]) == (name, [{"id": 0, "scale": 1.0}])


@pytest.mark.parametrize("body", [b"{}", b'{ "x": 1 }'])
@pytest.mark.parametrize("field", [False, True])
def test_an_adapter_named_by_header_is_named_in_the_body(rig: Rig, body: bytes, field: bool) -> None:
    engine = rig.upstream(says())
    name = serve(rig, engine, field=field)
    good(ask(rig.port, CHAT, body, f"x-llmgw-model: {name}:legal"))
    sent = engine.requests[-1].json
    assert sent["model"] == (name if field else f"{name}:legal")
    assert sent.get("lora") == ([{"id": 0, "scale": 1.0}] if field else None)


def test_a_stream_that_is_counted_gets_both_members(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.name()
    route = with_adapters(rig.replica(engine, name, counts_usage=True), as_field(name, "legal"))
    rig.publish(ModelRoute(name, ArmRoute(STABLE_REVISION, (route,)), adapters=("legal",)))
    good(ask(rig.port, CHAT, {"model": f"{name}:legal", "stream": True}))
    sent = engine.requests[-1].json
    assert (sent["lora"], sent["stream_options"]) == ([{"id": 0, "scale": 1.0}], {"include_usage": True})


def test_what_is_no_json_cannot_ask_for_an_adapter_by_field(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = serve(rig, engine, field=True)
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b:legal\r\n--b--\r\n' % name.encode()
    reply = ask(rig.port, "/v1/audio", form, "Content-Type: multipart/form-data; boundary=b")
    assert (reply.status, reply.code) == (400, "adapter_needs_json")
    assert engine.requests == []


def test_an_adapter_is_stables_and_no_request_for_it_is_compared(rig: Rig) -> None:
    canary = rig.upstream(says())
    name = serve(rig, says(), canary=canary.script)
    with Client(rig.port) as client:
        for _ in range(4):
            reply = good(client.ask(CHAT, {"model": f"{name}:legal"}))
            assert reply.headers["x-llmgw-arm"] == "stable"
        assert good(client.ask(CHAT, {"model": name})).headers["x-llmgw-arm"] == "canary"
    rig.daemon.await_total(f"{name}:legal", 4)
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(f"{name}:legal").outcomes == {Outcome.OK: 4}
    assert rig.daemon.sample(f"{name}:legal").canary == ""
    assert rig.daemon.sample(name).outcomes == {}
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.OK: 1}
    looks = [look for report in rig.daemon.distinct() for look in report.looks if look.canary == f"canary-of-{name}"]
    assert sum(look.arrived for look in looks) == 1


def test_a_canary_cannot_be_forced_for_an_adapter(rig: Rig) -> None:
    name = serve(rig, says(), canary=says())
    reply = ask(rig.port, CHAT, {"model": f"{name}:legal"}, "x-llmgw-arm: canary")
    assert (reply.status, reply.code) == (409, "no_canary")
    assert good(ask(rig.port, CHAT, {"model": f"{name}:legal"}, "x-llmgw-arm: stable"))


def test_only_replicas_that_have_the_adapter_are_asked_for_it(rig: Rig) -> None:
    without, having = rig.upstream(says()), rig.upstream(says())
    name = rig.name()
    replicas = (rig.replica(without, name), with_adapters(rig.replica(having, name), as_name(name, "legal")))
    rig.publish(ModelRoute(name, ArmRoute(STABLE_REVISION, replicas), adapters=("legal",)))
    for _ in range(4):
        good(ask(rig.port, CHAT, {"model": f"{name}:legal"}))
    assert (len(without.requests), len(having.requests)) == (0, 4)


def test_an_adapter_falls_back_as_its_model_does(rig: Rig) -> None:
    name, other = rig.name(), rig.name()
    rig.publish(
        ModelRoute(name, ArmRoute(STABLE_REVISION), fallbacks=(other,), adapters=("legal",)),
        ModelRoute(other, ArmRoute(STABLE_REVISION, (rig.replica(says(), other),))),
    )
    reply = good(ask(rig.port, CHAT, {"model": f"{name}:legal"}))
    assert (reply.headers["x-llmgw-model"], reply.json["model"]) == (other, f"{name}:legal")


def test_model_names_and_aliases_come_before_adapters(rig: Rig) -> None:
    first, second = rig.upstream(says()), rig.upstream(says())
    name = rig.name()
    taken = f"{name}:legal"
    stable = ArmRoute(STABLE_REVISION, (with_adapters(rig.replica(first, name), as_name(name, "legal")),))
    other = ArmRoute(STABLE_REVISION, (rig.replica(second, taken),))
    rig.publish(ModelRoute(name, stable, adapters=("legal",)), ModelRoute(taken, other))
    good(ask(rig.port, CHAT, {"model": taken}))
    assert (len(first.requests), len(second.requests)) == (0, 1)


def test_a_model_and_its_adapters_wait_in_one_line(tight_rig: Rig) -> None:
    release = threading.Event()
    order: list[str] = []

    def waits(connection: Connection, asked: Request) -> None:
        order.append(asked.json["model"])
        release.wait(10)
        connection.json(answer(model=asked.json["model"]))

    def waits_now(count: int) -> bool:
        return [line.waiting for line in tight_rig.daemon.lines] == [count]

    name = serve(tight_rig, waits)
    clients = [Client(tight_rig.port) for _ in range(3)]
    try:
        clients[0].send(request(CHAT, {"model": name}))
        tight_rig.daemon.wait(lambda: len(order) == 1, "the engine is busy")
        for waiting, client, model in ((1, clients[1], f"{name}:legal"), (2, clients[2], name)):
            client.send(request(CHAT, {"model": model}))
            tight_rig.daemon.wait(partial(waits_now, waiting), f"{waiting} wait")
        assert ask(tight_rig.port, CHAT, {"model": f"{name}:legal"}).status == 429
        release.set()
        assert [client.read().json["model"] for client in clients] == [name, f"{name}:legal", name]
        assert order == [name, f"{name}:legal", name]
    finally:
        release.set()
        for client in clients:
            client.close()
