"""Models by name and alias, and replies under the name the client asked for (G2, G11)."""

import json
from hashlib import sha256

import pytest

from llmgwd.protocol.link import ArmRoute, ModelRoute, ReplicaRoute, Routes
from tests.gateway.answers import DONE, answer, chunk, says, streams
from tests.gateway.client import Client, ask
from tests.gateway.conftest import Rig

CHAT = "/v1/chat/completions"


def test_the_listing_is_names_and_aliases_and_a_canary_does_not_show(rig: Rig) -> None:
    engine = rig.upstream(says())
    stable = ArmRoute("a" * 40, (rig.replica(engine, "chat"),))
    rig.publish(ModelRoute("chat", stable, ("gpt-4", "a/b")), ModelRoute("base", stable))
    before = ask(rig.port, "/v1/models").body
    assert [model["id"] for model in json.loads(before)["data"]] == ["a/b", "base", "chat", "gpt-4"]
    name = rig.serve(engine, canary=engine, share=50, aliases=("x",))
    during = ask(rig.port, "/v1/models")
    assert [model["id"] for model in during.json["data"]] == sorted([name, "x"])
    rig.publish(ModelRoute("base", stable), ModelRoute("chat", stable, ("a/b", "gpt-4")))
    assert ask(rig.port, "/v1/models").body == before
    assert ask(rig.port, "/v1/models/a%2Fb").json == ask(rig.port, "/v1/models/a/b").json
    assert ask(rig.port, "/v1/models/chat").json == {"id": "chat", "object": "model", "created": 0, "owned_by": "llmgw"}
    assert ask(rig.port, "/v1/models/nope").code == "model_not_found"
    assert ask(rig.port, "/v1/models", {}).code == "method_not_allowed"


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("alias", [False, True])
def test_replies_carry_the_name_asked_for(rig: Rig, arm: str, alias: bool) -> None:
    engine = rig.upstream(says("the \"model\" of 'engine'"))
    name = rig.serve(engine, canary=engine, aliases=("nick",))
    asked = "nick" if alias else name
    served = name if arm == "stable" else f"{name}-canary"
    sent = json.dumps({"messages": [{"model": "inner"}], "model": asked}).encode()
    reply = ask(rig.port, CHAT, sent, f"x-llmgw-arm: {arm}")
    assert reply.body == json.dumps(answer("the \"model\" of 'engine'", model=asked)).encode()
    assert engine.requests[-1].body == sent.replace(asked.encode(), served.encode())
    events = ask(rig.port, CHAT, {"model": asked, "stream": True}, f"x-llmgw-arm: {arm}").body.split(b"\n\n")
    assert [json.loads(event[6:])["model"] for event in events[:-2]] == [asked] * 3


def test_engines_own_name_passes_when_nothing_was_renamed(rig: Rig) -> None:
    name = rig.serve(streams(chunk({"content": "x"}, "stop", model="/srv/weights.gguf"), DONE))
    reply = ask(rig.port, CHAT, {"model": name, "stream": True})
    assert reply.body == chunk({"content": "x"}, "stop", model="/srv/weights.gguf") + DONE


def test_an_unknown_model_is_told_the_names(rig: Rig) -> None:
    name = rig.serve(says())
    reply = ask(rig.port, CHAT, {"model": "nope"})
    assert (reply.status, reply.code) == (404, "model_not_found")
    assert name in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"messages": []}, 400, "model_required"),
        ({"model": 7}, 400, "invalid_model"),
        (b'{"model": "x"', 400, "invalid_json"),
        (b"[]", 400, "model_required"),
        (b"", 400, "model_required"),
    ],
)
def test_a_request_without_a_usable_model_is_told_how(rig: Rig, body: object, status: int, code: str) -> None:
    rig.serve(says())
    with Client(rig.port) as client:
        reply = client.ask(CHAT, body)
        assert (reply.status, reply.code) == (status, code)
        assert client.ask("/health").status == 200


@pytest.mark.parametrize("how", ["header", "query"])
def test_other_paths_name_a_model_outside_the_body(rig: Rig, how: str) -> None:
    engine = rig.upstream(lambda connection, request: connection.json({"tokens": []}))
    name = rig.serve(engine)
    if how == "header":
        reply = ask(rig.port, "/tokenize", b"raw", f"x-llmgw-model: {name}", "Content-Type: text/plain")
    else:
        reply = ask(rig.port, f"/slots?model={name}")
    assert reply.json == {"tokens": []}
    assert engine.requests[-1].line.split(" ")[1] in ("/tokenize", f"/slots?model={name}")


def test_no_ready_replica_is_503_with_retry_after(rig: Rig) -> None:
    name = rig.name()
    rig.publish(ModelRoute(name, ArmRoute("a" * 40)))
    reply = ask(rig.port, CHAT, {"model": name})
    assert (reply.status, reply.code) == (503, "no_replica")
    rig.daemon.wait(lambda: rig.daemon.sample(name).turned_away == 1, "counted")
    assert reply.headers["retry-after"] == "1"


def test_before_the_first_routes_everything_but_health_is_503(own_rig: Rig) -> None:
    assert ask(own_rig.port, "/health").status == 200
    for path, body in (("/v1/models", None), (CHAT, {"model": "x"})):
        reply = ask(own_rig.port, path, body)
        assert (reply.status, reply.code) == (503, "no_routes")


def test_keys_are_asked_for_and_kept_from_the_engine(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.name()
    model = ModelRoute(name, ArmRoute("a" * 40, (rig.replica(engine, name),)))
    rig.publish(model, keys=(sha256(b"other").digest(), sha256(b"sk-1").digest()))
    try:
        for headers in ((), ("Authorization: Bearer sk-2",), ("Authorization: Basic sk-1",), ("Authorization: sk-1",)):
            reply = ask(rig.port, CHAT, {"model": name}, *headers)
            assert (reply.status, reply.code) == (401, "invalid_api_key")
        assert not engine.requests
        assert ask(rig.port, "/health").status == 200
        assert ask(rig.port, "/v1/models").status == 401
        assert ask(rig.port, CHAT, {"model": name}, "Authorization: Bearer sk-1").status == 200
        assert "authorization" not in engine.requests[-1].headers
    finally:
        rig.publish(model)


def test_keys_that_begin_to_be_asked_for_hold_for_connections_there_are(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.name()
    model = ModelRoute(name, ArmRoute("a" * 40, (rig.replica(engine, name),)))
    rig.publish(model)
    try:
        with Client(rig.port) as with_key, Client(rig.port) as without:
            for _ in range(3):
                assert without.ask(CHAT, {"model": name}).status == 200
                assert with_key.ask(CHAT, {"model": name}, "Authorization: Bearer sk-1").status == 200
                assert engine.requests[-1].headers["authorization"] == "Bearer sk-1"
            rig.publish(model, keys=(sha256(b"sk-1").digest(),))
            for _ in range(3):
                assert with_key.ask(CHAT, {"model": name}, "Authorization: Bearer sk-1").status == 200
                assert "authorization" not in engine.requests[-1].headers
            assert without.ask(CHAT, {"model": name}).status == 401
            assert without.is_closed()
            rig.publish(model, keys=(sha256(b"sk-2").digest(),))
            assert with_key.ask(CHAT, {"model": name}, "Authorization: Bearer sk-1").status == 401
    finally:
        rig.publish(model)


def test_routes_with_a_dead_stable_pool_still_list(rig: Rig) -> None:
    rig.publish(ModelRoute("gone", ArmRoute("a" * 40, (ReplicaRoute("r", "127.0.0.1", 1, "gone"),))))
    assert [model["id"] for model in ask(rig.port, "/v1/models").json["data"]] == ["gone"]
    assert isinstance(rig.daemon.routes, Routes)
