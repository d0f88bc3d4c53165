"""Bytes pass as they are, in both directions (G1), and HTTP's rules hold on the client's side."""

import gzip
import json
import threading

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import HELLO, PLAIN_STREAM, answer, says, streams
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Upstream

CHAT = "/v1/chat/completions"
ODD_JSON = b'{ "model" : "%b",\t"messages": [ {"role":"user", "content":"h\\u00e9\\n\xf0\x9f\x98\x80"} ] , "x": 1e3 }\n'


@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_json_passes_byte_for_byte_both_ways(rig: Rig, arm: str) -> None:
    body = b'{"model": "engine-name",  "choices":[{"message":{"content":"\\u00e9 \xf0\x9f\x98\x80"}}], "odd" : 1.0}\n'
    engine = rig.upstream(lambda connection, request: connection.reply(200, body, "X-Engine: 1"))
    name = rig.name()
    rig.publish(_both_arms(rig, name, engine))
    sent = ODD_JSON % name.encode()
    reply = ask(rig.port, f"{CHAT}?a=b%20c", sent, f"x-llmgw-arm: {arm}", "X-Mine: yes")
    assert (reply.status, reply.body) == (200, body)
    assert reply.headers["x-llmgw-arm"] == arm
    assert reply.headers["x-engine"] == "1"
    seen = engine.requests[-1]
    assert seen.line == f"POST {CHAT}?a=b%20c HTTP/1.1"
    assert seen.body == sent
    assert seen.headers["x-mine"] == "yes"
    assert seen.headers["host"] == f"127.0.0.1:{engine.port}"


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_streams_pass_byte_for_byte(rig: Rig, arm: str, line_end: bytes) -> None:
    events = [event.replace(b"\n", line_end) for event in (b": ping\n\n", *PLAIN_STREAM)]
    engine = rig.upstream(streams(*events))
    name = rig.name()
    rig.publish(_both_arms(rig, name, engine))
    reply = ask(rig.port, CHAT, {"model": name, "stream": True}, f"x-llmgw-arm: {arm}")
    assert reply.body == b"".join(events)
    assert reply.whole


def test_large_bodies_pass_both_ways(rig: Rig) -> None:
    def echo(connection: Connection, request: Request) -> None:
        connection.reply(200, request.body, content_type="application/octet-stream")

    name = rig.serve(echo)
    body = json.dumps({"model": name, "text": "x" * 1_000_000}).encode()
    assert ask(rig.port, "/v1/other", body).body == body


def test_a_body_whose_end_is_the_connections_end_arrives_whole(rig: Rig) -> None:
    payload = json.dumps(answer()).encode()

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + payload)
        connection.close()

    name = rig.serve(script)
    reply = ask(rig.port, CHAT, {"model": name})
    assert (reply.body, reply.whole) == (payload, True)


def test_hop_by_hop_headers_stay_on_their_hop(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.reply(200, b"{}", "Keep-Alive: timeout=5", "Connection: keep-alive, X-Inner", "X-Inner: 1", "X-Y: 2")

    engine = rig.upstream(script)
    name = rig.serve(engine)
    sent = ("Connection: keep-alive, X-Secret", "X-Secret: 1", "Proxy-Authorization: z", "TE: trailers", "Upgrade: h2c")
    reply = ask(rig.port, "/v1/x", {"model": name}, *sent, "X-Kept: 1")
    seen = engine.requests[-1].headers
    assert seen["x-kept"] == "1"
    assert not {"x-secret", "proxy-authorization", "te", "upgrade", "connection"} & set(seen)
    assert reply.headers["x-y"] == "2"
    assert not {"x-inner", "keep-alive"} & set(reply.headers)


def test_authorization_reaches_the_engine_only_when_it_is_not_the_gateways_own(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine)
    ask(rig.port, CHAT, {"model": name}, "Authorization: Bearer engine-key")
    assert engine.requests[-1].headers["authorization"] == "Bearer engine-key"


def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    name = rig.serve(lambda connection, request: connection.json({"n": request.json["n"]}))
    with Client(rig.port) as client:
        client.send(b"".join(request("/v1/x", {"model": name, "n": n}) for n in range(20)) + request("/health"))
        assert [client.read().json["n"] for _ in range(20)] == list(range(20))
        assert client.read().json == {"status": "ok"}


def test_a_request_in_single_bytes_is_understood(rig: Rig) -> None:
    name = rig.serve(says())
    with Client(rig.port) as client:
        for byte in request(CHAT, {"model": name}):
            client.send(bytes([byte]))
        assert client.read().status == 200


def test_chunked_request_bodies_reach_the_engine_with_a_length(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine)
    body = json.dumps({"model": name}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Client(rig.port) as client:
        client.send(head + b"5;a=b\r\n" + body[:5] + b"\r\n")
        client.send(b"%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(body) - 5, body[5:]))
        assert client.read().status == 200
        assert client.ask("/health").status == 200
    seen = engine.requests[-1]
    assert seen.body == body
    assert seen.headers["content-length"] == str(len(body))
    assert "x-trailer" not in seen.headers


def test_expect_continue_is_answered_before_the_body(rig: Rig) -> None:
    name = rig.serve(says())
    head, _, body = request(CHAT, {"model": name}, "Expect: 100-continue").partition(b"\r\n\r\n")
    with Client(rig.port) as client:
        client.send(head + b"\r\n\r\n")
        assert client.read().status == 100
        client.send(body)
        assert client.read().status == 200


def test_http_1_0_is_answered_without_chunks_and_closed(rig: Rig) -> None:
    name = rig.serve(streams(*PLAIN_STREAM))
    sent = request(CHAT, {"model": name, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    with Client(rig.port) as client:
        client.send(sent)
        head = client.read_until(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"Connection: close" in head
        assert client.read_rest() == b"".join(PLAIN_STREAM)


def test_http_1_0_keeps_the_connection_when_asked(rig: Rig) -> None:
    name = rig.serve(says())
    sent = request(CHAT, {"model": name}, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0")
    with Client(rig.port) as client:
        for _ in range(2):
            client.send(sent)
            assert client.read().headers["connection"] == "keep-alive"


def test_connection_close_is_honoured(rig: Rig) -> None:
    name = rig.serve(says())
    with Client(rig.port) as client:
        reply = client.ask(CHAT, {"model": name}, "Connection: close")
        assert reply.headers["connection"] == "close"
        assert client.is_closed()


def test_head_has_the_length_and_no_body(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")

    name = rig.serve(script)
    with Client(rig.port) as client:
        reply = client.ask(f"/v1/x?model={name}", method="HEAD")
        assert (reply.status, reply.headers["content-length"]) == (200, "1234")
        assert client.ask("/v1/models", method="HEAD").headers["content-length"] > "0"
        assert client.ask("/health").status == 200


def test_statuses_without_a_body_pass(rig: Rig) -> None:
    name = rig.serve(lambda connection, request: connection.send(b"HTTP/1.1 204 No Content\r\n\r\n"))
    with Client(rig.port) as client:
        assert client.ask(f"/v1/x?model={name}", method="DELETE").status == 204
        assert client.ask("/health").status == 200


def test_options_needs_no_model(rig: Rig) -> None:
    reply = ask(rig.port, CHAT, None, "Origin: http://a", "Access-Control-Request-Method: POST", method="OPTIONS")
    assert reply.status == 204
    assert reply.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_compressed_replies_pass_as_they_are_although_nobody_asked_for_them(rig: Rig, kind: str, arm: str) -> None:
    packed = gzip.compress(json.dumps(answer()).encode() if "json" in kind else b"".join(PLAIN_STREAM))

    def script(connection: Connection, request: Request) -> None:
        connection.reply(200, packed, "Content-Encoding: gzip", content_type=kind)

    engine = rig.upstream(script)
    name = rig.serve(engine, canary=engine, share=100 if arm == "canary" else 0, counts_usage=True)
    reply = ask(rig.port, CHAT, {"model": name, "stream": True}, "Accept-Encoding: gzip")
    assert (reply.body, reply.headers["content-encoding"]) == (packed, "gzip")
    assert "accept-encoding" not in engine.requests[-1].headers
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name, Arm(arm)).outcomes == {Outcome.OK: 1}


def test_interim_replies_of_the_engine_are_skipped(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        connection.json(answer())

    name = rig.serve(script)
    assert ask(rig.port, CHAT, {"model": name}).json == answer()


def test_connections_to_the_engine_are_used_again(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine)
    with Client(rig.port) as client:
        for _ in range(10):
            assert client.ask(CHAT, {"model": name}).status == 200
            assert client.ask(CHAT, {"model": name, "stream": True}).status == 200
    assert engine.connections == 1


def test_a_kept_connection_that_died_is_replaced_without_blame(rig: Rig) -> None:
    def once(connection: Connection, request: Request) -> None:
        says()(connection, request)
        connection.read_request()
        connection.close()

    engine = rig.upstream(once)
    name = rig.serve(engine)
    with Client(rig.port) as client:
        for _ in range(3):
            assert client.ask(CHAT, {"model": name}).status == 200
    assert engine.connections == 3
    rig.daemon.await_total(name, 3)
    assert rig.daemon.sample(name).outcomes == {"ok": 3}


def test_a_multipart_form_names_its_model(rig: Rig) -> None:
    engine = rig.upstream(lambda connection, request: connection.json({"text": "hm"}))
    name = rig.serve(engine, canary=engine)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\x01\r\n'
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--b--\r\n' % name.encode()
    )
    reply = ask(rig.port, "/v1/audio/transcriptions", form, "Content-Type: multipart/form-data; boundary=b")
    assert reply.json == {"text": "hm"}
    assert engine.requests[-1].body == form.replace(name.encode(), f"{name}-canary".encode())


def test_the_first_bytes_of_a_stream_do_not_wait_for_the_rest(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(HELLO)
        connection.wait_gone()

    name = rig.serve(script)
    with Client(rig.port) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        assert client.read_until(b"\n\n").endswith(HELLO.removesuffix(b"\n\n"))


def _both_arms(rig: Rig, name: str, engine: Upstream) -> ModelRoute:
    """Stable and canary on one engine that knows both by the name asked for, so that nothing is rewritten."""
    stable, canary = (
        ReplicaRoute(f"{name}-{arm}", "127.0.0.1", engine.port, name, counts_usage=False) for arm in ("s", "c")
    )
    return ModelRoute(
        name, ArmRoute("a" * 40, (stable,)), canary=CanaryRoute(f"c-{name}", 50, ArmRoute("b" * 40, (canary,)))
    )


def test_a_request_that_fells_an_engine_is_not_given_to_the_next(rig: Rig) -> None:
    never = threading.Event()
    seen: list[Upstream] = []

    def fragile(connection: Connection, request: Request) -> None:
        if b"poison" not in request.body:
            says()(connection, request)
            return
        fallen = next(engine for engine in engines if request in engine.requests)
        seen.append(fallen)
        never.wait(0.3)  # passes a known time: a connection that is lost this late was not lost to its age
        fallen.close()

    engines = [rig.upstream(fragile) for _ in range(3)]
    name = rig.name()
    rig.publish(ModelRoute(name, ArmRoute("r", tuple(rig.replica(each, name) for each in engines))))
    # Each has a connection that was used before.
    while not all(each.requests for each in engines):
        assert ask(rig.port, CHAT, {"model": name}).status == 200
    assert ask(rig.port, CHAT, {"model": name, "poison": True}).status == 502
    assert len(seen) == 1
