"""Whatever a reply or a request says of itself, the worker counts, answers and goes on reporting."""

import json
import socket
import struct
import threading
from collections import Counter

import pytest

from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import DONE, answer, event, fails, says, streams
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request, Script

CHAT = "/v1/chat/completions"
DEEP = "[" * 5000
JSON_ASKED = {"response_format": {"type": "json_object"}}


def said(more: str, content: str = "hi") -> bytes:
    message = json.dumps({"role": "assistant", "content": content})
    return f'{{"model":"m","choices":[{{"message":{message},"finish_reason":"stop"}}]{more}}}'.encode()


HUGE = "9" * 24
ODD = {
    "more tokens than fit a report": said(f',"usage":{{"prompt_tokens":{HUGE},"completion_tokens":{HUGE}}}'),
    "tokens below none": said(',"usage":{"prompt_tokens":-1,"completion_tokens":-5}'),
    "tokens that are true": said(',"usage":{"prompt_tokens":true,"completion_tokens":true}'),
    "a time of 400 digits": said(f',"timings":{{"prompt_ms":1{"0" * 400},"predicted_per_token_ms":1{"0" * 400}}}'),
    "an infinite time": said(',"timings":{"prompt_ms":1e400,"predicted_per_token_ms":1e400,"prompt_n":1e400}'),
    "a time below none": said(',"timings":{"prompt_ms":-1,"predicted_per_token_ms":-1}'),
    "nesting without end": said(f',"x":{DEEP}{"]" * len(DEEP)}'),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", ODD)
def test_odd_figures_pass_and_are_not_believed(rig: Rig, case: str, streamed: bool) -> None:
    body = ODD[case]

    def script(connection: Connection, request: Request) -> None:
        if streamed:
            connection.stream(b"data: " + body.replace(b'"message"', b'"delta"') + b"\n\n", DONE)
        else:
            connection.reply(200, body)

    name = rig.serve(script)
    with Client(rig.port) as client:
        for _ in range(2):
            reply = client.ask(CHAT, {"model": name, "stream": streamed})
            assert reply.status == 200
            assert reply.whole
    rig.daemon.wait(lambda: rig.daemon.sample(name).outcomes == {Outcome.OK: 2}, "told")
    sample = rig.daemon.sample(name)
    assert (sample.prompt_tokens, sample.completion_tokens, sample.token_time) == (0, 0, {})


def test_an_answer_nested_without_end_is_no_json_and_counts_once(rig: Rig) -> None:
    name = rig.serve(lambda connection, request: connection.json(answer(DEEP, model=request.json["model"])))
    with Client(rig.port) as client:
        for _ in range(2):
            assert client.ask(CHAT, {"model": name, **JSON_ASKED}).status == 200
    rig.daemon.wait(lambda: rig.daemon.sample(name).outcomes == {Outcome.OK: 2}, "told")
    assert rig.daemon.sample(name).degenerate == 2


@pytest.mark.parametrize("member", ["x", "model", "response_format", "stream_options"])
def test_a_request_nested_without_end_is_answered(rig: Rig, member: str) -> None:
    name = rig.serve(says())
    body = f'{{"model":"{name}","{member}":{DEEP}{"]" * len(DEEP)}}}'.encode()
    with Client(rig.port) as client:
        reply = client.ask(CHAT, body)
        assert (reply.status, reply.code) in ((400, "invalid_json"), (400, "invalid_model"))
        assert client.ask(CHAT, {"model": name}).status == 200


@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)], ids=["closes", "resets"])
def test_an_engine_that_closes_what_it_accepts_is_as_good_as_none(rig: Rig, linger: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:

        def turn_away() -> None:
            while True:
                try:
                    taken, _ = listener.accept()
                except OSError:
                    return
                if linger:
                    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                taken.close()

        for _ in range(4):
            threading.Thread(target=turn_away, daemon=True).start()
        name = rig.serve(listener.getsockname()[1])
        statuses: Counter[int] = Counter()

        def crowd() -> None:
            for _ in range(40):
                statuses[ask(rig.port, CHAT, {"model": name}).status] += 1

        clients = [threading.Thread(target=crowd) for _ in range(6)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        replica = f"{name}-{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    assert statuses == {502: 240}
    rig.daemon.wait(lambda: rig.daemon.in_flight(replica) == 0, "nothing in flight")


STRAY = [b"HTTP/1.1 200 OK\r\nX-Stray: ", b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"]


@pytest.mark.parametrize("stray", STRAY, ids=["half a head", "a byte", "a reply"])
def test_what_follows_a_reply_reaches_nobody(rig: Rig, stray: bytes) -> None:
    def script(connection: Connection, request: Request) -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        connection.send(reply + (stray if request.json["n"] == 0 else b""))

    engine = rig.upstream(script)
    name = rig.serve(engine)
    with Client(rig.port) as client:
        for n in range(4):
            reply = client.ask(CHAT, {"model": name, "n": n})
            assert (reply.status, reply.body) == (200, b"{}")
            assert "x-stray" not in reply.headers
    assert engine.connections == 2


def test_a_connection_whose_request_was_not_read_is_not_used_again(own_rig: Rig) -> None:
    go_on = threading.Event()

    def hasty(taken: socket.socket) -> None:
        taken.recv(4096)
        taken.sendall(b"HTTP/1.1 413 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        go_on.wait(10)
        taken.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:
                    return
                threading.Thread(target=hasty, args=(accepted[-1],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        name = own_rig.serve(listener.getsockname()[1])
        assert ask(own_rig.port, CHAT, {"model": name, "pad": "x" * 20_000_000}).status == 413
        assert ask(own_rig.port, CHAT, {"model": name}).status == 413
        assert len(accepted) == 2
        go_on.set()
        listener.shutdown(socket.SHUT_RDWR)


NOTHING_TO_SAY = {
    "HEAD": ("HEAD", "/v1/chat/completions", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    "a probe": ("HEAD", "/v1/thing", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    "no content": ("DELETE", "/v1/thing", b"HTTP/1.1 204 No Content\r\n\r\n"),
    "accepted": ("POST", "/v1/completions", b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
    "moved": ("GET", "/v1/thing", b"HTTP/1.1 307 X\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n"),
    "done": ("POST", "/reset_prefix_cache", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("case", NOTHING_TO_SAY)
def test_a_reply_that_promised_no_answer_is_not_an_empty_one(rig: Rig, case: str) -> None:
    method, path, reply = NOTHING_TO_SAY[case]
    name = rig.serve(lambda connection, request: connection.send(reply))
    ask(rig.port, path, None, f"x-llmgw-model: {name}", method=method)
    rig.daemon.wait(lambda: rig.daemon.sample(name).outcomes == {Outcome.OK: 1}, "counted")


@pytest.mark.parametrize(("status", "outcome"), [(500, Outcome.ERROR), (429, Outcome.REJECTED)])
def test_a_client_that_hangs_up_at_an_errors_head_does_not_undo_it(rig: Rig, status: int, outcome: Outcome) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{" % status)
        connection.wait_gone()

    name = rig.serve(script)
    with Client(rig.port) as client:
        client.send(request(CHAT, {"model": name}))
        client.read_until(b"\r\n\r\n")
    rig.daemon.wait(lambda: rig.daemon.sample(name).outcomes == {outcome: 1}, "counted")


BROKEN: dict[str, Script] = {
    "status": fails(500),
    "event": streams(event({"error": {"message": "x"}}), DONE),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_rescue_is_held_to_the_time_for_connecting_like_any_request(rig: Rig, case: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        waiting = []
        for _ in range(4):
            # A full backlog: who connects now is neither taken nor refused.
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(("127.0.0.1", port))
        name = rig.serve(port, canary=BROKEN[case], share=100)
        reply = ask(rig.port, CHAT, {"model": name, "stream": True})
        assert (reply.status, reply.code) == (502, "upstream_failed")
        rig.daemon.wait(lambda: rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.ERROR: 1}, "charged")
        for each in waiting:
            each.close()


def test_a_request_too_deep_to_be_renamed_is_refused_and_one_that_need_not_be_passes(rig: Rig) -> None:
    engine = rig.upstream(says())
    name = rig.serve(engine, canary=engine)
    deep = f'{{"x\\u00e9":{"[" * 300}{"]" * 300},"model":"{name}"}}'.encode()
    with Client(rig.port) as client:
        reply = client.ask(CHAT, deep, "x-llmgw-arm: canary")
        assert (reply.status, reply.code) == (400, "nested_too_deeply")
        assert client.ask(CHAT, deep, "x-llmgw-arm: stable").status == 200
    assert [seen.json["model"] for seen in engine.requests] == [name]


PYTHONS_OWN = {
    "half a pair": b'"\\ud83d"',
    "not a number": b'"hi"}, "logprobs": {"x": NaN',
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", PYTHONS_OWN)
def test_what_only_python_reads_is_an_answer_and_renamed(rig: Rig, case: str, streamed: bool) -> None:
    content = PYTHONS_OWN[case]
    word = b"delta" if streamed else b"message"

    def script(connection: Connection, request: Request) -> None:
        choice = b'{"index": 0, "%b": {"content": %b}, "finish_reason": "stop"}' % (word, content)
        body = b'{"model": "%b-canary", "choices": [%b]}' % (name.encode(), choice)
        if streamed:
            connection.stream(b"data: " + body + b"\n\n", DONE)
        else:
            connection.reply(200, body)

    name = rig.serve(script, canary=script, share=100)
    reply = ask(rig.port, CHAT, {"model": name, "stream": streamed})
    assert content in reply.body
    assert b"-canary" not in reply.body
    rig.daemon.wait(lambda: rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.OK: 1}, "counted")


def test_json_lines_pass_as_they_come_under_the_name_that_was_asked_for(rig: Rig) -> None:
    go_on = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        for word in ("a", "b"):
            line = json.dumps({"model": f"{name}-canary", "message": {"content": word}}).encode() + b"\n"
            connection.chunk(line[:20])
            connection.chunk(line[20:])
            go_on.wait(10)
        connection.chunk(b'{"done": true}')
        connection.end_stream()

    name = rig.serve(script, canary=script, share=100)
    with Client(rig.port) as client:
        client.send(request("/api/chat", {"model": name}))
        first = client.read_until(b'"a"}}\n')
        assert f'"model": "{name}", '.encode() in first
        go_on.set()
        rest = client.read_until(b'{"done": true}')
        assert b"-canary" not in rest
    rig.daemon.wait(lambda: rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.OK: 1}, "counted")


def test_events_of_the_messages_api_are_renamed(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        start = {"type": "message_start", "message": {"id": "m", "model": f"{name}-canary", "content": []}}
        connection.stream(b"event: message_start\n" + event(start), b"event: message_stop\n" + event({"type": "x"}))

    name = rig.serve(script, canary=script, share=100)
    reply = ask(rig.port, "/v1/messages", {"model": name, "stream": True})
    assert f'"model":"{name}"'.encode() in reply.body
    assert b"-canary" not in reply.body


def test_a_user_that_is_no_string_does_not_hide_the_cache_key(rig: Rig) -> None:
    name = rig.serve(says(), canary=says(), share=50)
    for key in ("k1", "k2", "k3"):
        body = {"model": name, "user": 5, "prompt_cache_key": key}
        assert len({ask(rig.port, CHAT, body).headers["x-llmgw-arm"] for _ in range(6)}) == 1


def test_a_body_in_countless_tiny_chunks_is_refused(own_rig: Rig) -> None:
    engine = own_rig.upstream(says())
    name = own_rig.serve(engine)
    body = json.dumps({"model": name, "pad": "x" * 70_000}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with Client(own_rig.port) as client:
        client.send(head + b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n")
        reply = client.read()
        assert reply.status == 400
        assert "too small chunks" in reply.json["error"]["message"]
    with Client(own_rig.port) as client:
        client.send(head + b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, 2 * (len(body) // 2), 2)))
        client.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) % 2, body[-1:]) if len(body) % 2 else b"0\r\n\r\n")
        assert client.read().status == 200
    assert len(engine.requests) == 1


def test_endless_trailers_of_a_reply_end_it(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(event({"choices": [{"index": 0, "delta": {"content": "hi"}}]}))
        connection.send(b"0\r\n")
        for _ in range(200):
            connection.send(b"X-Trailer: " + b"x" * 1000 + b"\r\n")

    name = rig.serve(script)
    ask(rig.port, CHAT, {"model": name, "stream": True})
    rig.daemon.wait(lambda: rig.daemon.sample(name).outcomes == {Outcome.TRUNCATED: 1}, "cut")


def test_an_unknown_name_is_not_repeated_at_length(rig: Rig) -> None:
    reply = ask(rig.port, CHAT, {"model": "x" * 100_000})
    assert (reply.status, reply.code) == (404, "model_not_found")
    assert len(reply.body) < 10_000
