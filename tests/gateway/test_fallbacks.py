"""What answers in the place of a model that cannot, and how that is counted."""

import threading
from pathlib import Path

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import HELLO, ROLE, answer, event, fails, says
from tests.gateway.client import Client, Reply, ask, request
from tests.gateway.conftest import CANARY_REVISION, STABLE_REVISION, Rig
from tests.gateway.upstream import Connection, Request, Script, Upstream
from tests.support.house import free_port

CHAT = "/v1/chat/completions"

Engine = Script | Upstream | int | None
"""None: the model has no ready replica."""


def arm(rig: Rig, name: str, engine: Engine) -> ArmRoute:
    return ArmRoute(STABLE_REVISION, () if engine is None else (rig.replica(engine, name),))


def publish(rig: Rig, *engines: Engine, canary: Script | None = None) -> list[str]:
    """Models of fresh names: the first falls back on the others, in order; it may have a canary that gets all."""
    names = [rig.name() for _ in engines]
    first, *others = [arm(rig, name, engine) for name, engine in zip(names, engines, strict=True)]
    canary_route = None
    if canary is not None:
        replica = rig.replica(canary, f"{names[0]}-canary")
        canary_route = CanaryRoute(f"canary-of-{names[0]}", 100, ArmRoute(CANARY_REVISION, (replica,)))
    routes = [ModelRoute(names[0], first, canary=canary_route, fallbacks=tuple(names[1:]))]
    rig.publish(*routes, *(ModelRoute(name, other) for name, other in zip(names[1:], others, strict=True)))
    return names


def resets(connection: Connection, request: Request) -> None:
    connection.reset()


def begins_with_an_error(connection: Connection, request: Request) -> None:
    connection.stream(event({"error": {"message": "out of memory"}}))


def answered_by(reply: Reply, asked: str) -> str:
    """The model whose header a good answer has, which must carry the name that was asked for."""
    assert reply.status == 200, reply.body
    assert reply.json["model"] == asked
    return reply.headers["x-llmgw-model"]


def test_every_reply_says_which_model_answered(rig: Rig) -> None:
    name = rig.serve(says(), aliases=("gpt",))
    assert answered_by(ask(rig.port, CHAT, {"model": name}), name) == name
    assert answered_by(ask(rig.port, CHAT, {"model": "gpt"}), "gpt") == name


def test_an_engine_cannot_say_that_another_model_answered(rig: Rig) -> None:
    def boasts(connection: Connection, request: Request) -> None:
        connection.reply(200, b"{}", "x-llmgw-model: gpt-9")

    name = rig.serve(boasts)
    assert ask(rig.port, CHAT, {"model": name}).headers["x-llmgw-model"] == name


@pytest.mark.parametrize(
    "engine",
    [None, resets, fails(500), fails(503), "refuses connections"],
    ids=["no replica", "resets", "500", "503", "refuses connections"],
)
def test_a_model_that_cannot_answer_falls_back(rig: Rig, engine: Script | str | None) -> None:
    first = free_port() if isinstance(engine, str) else engine
    name, other = publish(rig, first, says("from the other"))
    reply = ask(rig.port, CHAT, {"model": name})
    assert answered_by(reply, name) == other
    assert reply.headers["x-llmgw-arm"] == "stable"
    assert reply.json["choices"][0]["message"]["content"] == "from the other"


def test_a_stream_whose_first_event_is_an_error_falls_back(rig: Rig) -> None:
    name, other = publish(rig, begins_with_an_error, says())
    reply = ask(rig.port, CHAT, {"model": name, "stream": True})
    assert (reply.status, reply.headers["x-llmgw-model"]) == (200, other)
    assert b"error" not in reply.body
    assert b'"model": "%b"' % name.encode() in reply.body or b'"model":"%b"' % name.encode() in reply.body


def test_fallbacks_are_tried_in_their_order_and_once_each(rig: Rig) -> None:
    engines = [rig.upstream(script) for script in (fails(500), resets, fails(502), says(), says())]
    name, *others = publish(rig, *engines)
    assert answered_by(ask(rig.port, CHAT, {"model": name}), name) == others[2]
    assert [len(engine.requests) for engine in engines] == [1, 1, 1, 1, 0]


def test_models_that_fall_back_on_each_other_are_asked_once_each(rig: Rig) -> None:
    engines = [rig.upstream(fails(500)) for _ in range(2)]
    first, second = rig.name(), rig.name()
    rig.publish(
        ModelRoute(first, arm(rig, first, engines[0]), fallbacks=(second, first, second)),
        ModelRoute(second, arm(rig, second, engines[1]), fallbacks=(first,)),
    )
    reply = ask(rig.port, CHAT, {"model": first})
    assert (reply.status, reply.headers["x-llmgw-model"]) == (500, second)
    assert [len(engine.requests) for engine in engines] == [1, 1]


def test_a_fallbacks_own_fallbacks_are_not_followed(rig: Rig) -> None:
    first, second, third = rig.name(), rig.name(), rig.name()
    rig.publish(
        ModelRoute(first, arm(rig, first, None), fallbacks=(second,)),
        ModelRoute(second, arm(rig, second, None), fallbacks=(third,)),
        ModelRoute(third, arm(rig, third, says())),
    )
    reply = ask(rig.port, CHAT, {"model": first})
    assert (reply.status, reply.code) == (503, "no_replica")
    assert first in reply.json["error"]["message"]


def test_when_no_fallback_can_answer_the_client_is_told_of_the_model_it_asked_for(rig: Rig) -> None:
    name, _, _ = publish(rig, resets, None, resets)
    reply = ask(rig.port, CHAT, {"model": name})
    assert (reply.status, reply.code) == (502, "upstream_failed")
    assert name in reply.json["error"]["message"]


def test_a_fallback_that_is_not_served_is_passed_over(rig: Rig) -> None:
    name, other = rig.name(), rig.name()
    routes = ModelRoute(name, arm(rig, name, None), fallbacks=("nobody", other))
    rig.publish(routes, ModelRoute(other, arm(rig, other, says())))
    assert answered_by(ask(rig.port, CHAT, {"model": name}), name) == other


@pytest.mark.parametrize("status", [400, 404, 429])
def test_an_engines_refusal_of_a_request_is_the_answer(rig: Rig, status: int) -> None:
    name, _ = publish(rig, fails(status), says())
    reply = ask(rig.port, CHAT, {"model": name})
    assert (reply.status, reply.headers["x-llmgw-model"]) == (status, name)


def test_after_the_first_byte_nothing_falls_back(rig: Rig) -> None:
    def breaks_off(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(ROLE + HELLO)
        connection.reset()

    other = rig.upstream(says())
    name, _ = publish(rig, breaks_off, other)
    reply = ask(rig.port, CHAT, {"model": name, "stream": True})
    assert reply.headers["x-llmgw-model"] == name
    assert not reply.whole
    assert other.requests == []


def test_a_forced_arm_does_not_fall_back(rig: Rig) -> None:
    name, _ = publish(rig, None, says())
    assert ask(rig.port, CHAT, {"model": name}, "x-llmgw-arm: stable").status == 503


def test_a_fallback_answers_with_its_stable_and_is_not_in_its_comparison(rig: Rig) -> None:
    name, other = rig.name(), rig.name()
    canary = CanaryRoute(f"canary-of-{other}", 50, ArmRoute(CANARY_REVISION, (rig.replica(says(), f"{other}-canary"),)))
    rig.publish(
        ModelRoute(name, arm(rig, name, None), fallbacks=(other,)),
        ModelRoute(other, arm(rig, other, says()), canary=canary),
    )
    with Client(rig.port) as client:
        arms = []
        for turn in range(8):
            reply = client.ask(CHAT, {"model": other if turn % 2 else name})
            assert reply.headers["x-llmgw-model"] == other
            arms.append(reply.headers["x-llmgw-arm"])
    assert arms[0::2] == ["stable"] * 4
    assert sorted(arms[1::2]) == ["canary"] * 2 + ["stable"] * 2
    rig.daemon.wait(lambda: rig.daemon.sample(other, apart=True).outcomes == {Outcome.OK: 4}, "fallbacks apart")
    rig.daemon.await_total(other, 4)
    assert rig.daemon.sample(other).outcomes == rig.daemon.sample(other, Arm.CANARY).outcomes == {Outcome.OK: 2}
    looks = [look for report in rig.daemon.distinct() for look in report.looks if look.canary == canary.id]
    assert sum(look.arrived for look in looks) == sum(look.ended for look in looks) == 4


def test_the_model_that_failed_is_charged_and_says_who_answered(rig: Rig) -> None:
    name, other = publish(rig, fails(500), says())
    ask(rig.port, CHAT, {"model": name})
    rig.daemon.wait(lambda: rig.daemon.sample(name).fell_back == 1, "the fallback is counted")
    assert rig.daemon.sample(name).outcomes == {Outcome.ERROR: 1}
    assert rig.daemon.sample(other, apart=True).outcomes == {Outcome.OK: 1}
    assert rig.daemon.sample(other).outcomes == {}


def test_a_model_without_a_replica_is_charged_nothing(rig: Rig) -> None:
    name, _ = publish(rig, None, says())
    ask(rig.port, CHAT, {"model": name})
    rig.daemon.wait(lambda: rig.daemon.sample(name).fell_back == 1, "the fallback is counted")
    assert rig.daemon.sample(name).outcomes == {}
    assert rig.daemon.sample(name).turned_away == 1


def test_a_canary_that_fails_goes_to_stable_and_then_to_a_fallback(rig: Rig) -> None:
    canary, stable, other = rig.upstream(fails(500)), rig.upstream(resets), rig.upstream(says())
    name, fallback = publish(rig, stable, other, canary=canary.script)
    reply = ask(rig.port, CHAT, {"model": name})
    assert answered_by(reply, name) == fallback
    assert "x-llmgw-rescued" not in reply.headers
    rig.daemon.wait(lambda: rig.daemon.sample(name, apart=True).fell_back == 1, "the fallback is counted")
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.ERROR: 1}
    assert rig.daemon.sample(name, apart=True).outcomes == {Outcome.ERROR: 1}
    assert rig.daemon.sample(name, Arm.CANARY).rescued == 0


def test_a_canary_whose_stable_is_down_falls_back(rig: Rig) -> None:
    name, fallback = publish(rig, None, says(), canary=fails(500))
    assert answered_by(ask(rig.port, CHAT, {"model": name}), name) == fallback


def test_a_canary_that_stable_makes_good_for_needs_no_fallback(rig: Rig) -> None:
    other = rig.upstream(says())
    name, _ = publish(rig, says(), other, canary=fails(500))
    reply = ask(rig.port, CHAT, {"model": name})
    assert (answered_by(reply, name), reply.headers["x-llmgw-rescued"]) == (name, "1")
    assert other.requests == []


def test_a_full_line_falls_back(tight_rig: Rig) -> None:
    release = threading.Event()

    def waits(connection: Connection, request: Request) -> None:
        release.wait(10)
        connection.json(answer(model=request.json["model"]))

    name, other = publish(tight_rig, waits, says())
    clients = [Client(tight_rig.port) for _ in range(3)]
    try:
        for client in clients:
            client.send(request(CHAT, {"model": name}))
        tight_rig.daemon.wait(lambda: [line.waiting for line in tight_rig.daemon.lines] == [2], "the line is full")
        assert answered_by(ask(tight_rig.port, CHAT, {"model": name}), name) == other
        release.set()
        assert [answered_by(client.read(), name) for client in clients] == [name] * 3
    finally:
        release.set()
        for client in clients:
            client.close()


def test_who_waits_for_a_model_whose_last_replica_goes_falls_back(tight_rig: Rig) -> None:
    release = threading.Event()

    def waits(connection: Connection, request: Request) -> None:
        release.wait(10)
        connection.json(answer(model=request.json["model"]))

    name, other = publish(tight_rig, waits, says())
    with Client(tight_rig.port) as busy, Client(tight_rig.port) as waiting:
        busy.send(request(CHAT, {"model": name}))
        waiting.send(request(CHAT, {"model": name}))
        tight_rig.daemon.wait(lambda: [line.waiting for line in tight_rig.daemon.lines] == [1], "one waits")
        routes = ModelRoute(name, arm(tight_rig, name, None), fallbacks=(other,))
        tight_rig.publish(routes, ModelRoute(other, arm(tight_rig, other, says())))
        assert answered_by(waiting.read(), name) == other
        release.set()
        assert answered_by(busy.read(), name) == name


def test_a_fallback_that_goes_while_one_waits_for_it_leaves_the_next(tight_rig: Rig) -> None:
    release = threading.Event()

    def waits(connection: Connection, request: Request) -> None:
        release.wait(10)
        connection.json(answer(model=request.json["model"]))

    name, second, third = publish(tight_rig, None, waits, says())
    with Client(tight_rig.port) as busy, Client(tight_rig.port) as waiting:
        busy.send(request(CHAT, {"model": second}))
        tight_rig.daemon.wait(lambda: 1 in tight_rig.daemon.reports[-1].in_flight.values(), "the fallback is full")
        waiting.send(request(CHAT, {"model": name}))
        tight_rig.daemon.wait(lambda: [line.waiting for line in tight_rig.daemon.lines] == [1], "one waits")
        routes = ModelRoute(name, arm(tight_rig, name, None), fallbacks=(second, third))
        tight_rig.publish(routes, ModelRoute(third, arm(tight_rig, third, says())))
        assert answered_by(waiting.read(), name) == third
        release.set()
        assert answered_by(busy.read(), second) == second


def test_one_who_waits_too_long_falls_back_and_nobody_is_charged(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--max-in-flight", "1", "--reply-timeout", "0.6")
    try:
        beats = threading.Event()

        def busy(connection: Connection, request: Request) -> None:
            connection.start_stream()
            while not beats.wait(0.1):
                connection.chunk(b": ping\n\n")

        name, other = publish(rig, busy, says())
        with Client(rig.port) as first:
            first.send(request(CHAT, {"model": name, "stream": True}))
            first.read_until(b"ping")
            assert answered_by(ask(rig.port, CHAT, {"model": name}), name) == other
            rig.daemon.wait(lambda: rig.daemon.sample(name).fell_back == 1, "the fallback is counted")
            assert rig.daemon.sample(name).outcomes == {}
            assert rig.daemon.sample(name).turned_away == 1
        beats.set()
    finally:
        rig.close()
