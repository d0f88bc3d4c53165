"""Which arm serves (G2, G3) and what becomes of a canary that fails (G5)."""

import random
import threading

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute
from llmgwd.protocol.samples import Arm, Outcome
from tests.gateway.answers import DONE, HELLO, ROLE, STOP, fails, says, streams
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import CANARY_REVISION, STABLE_REVISION, Rig
from tests.gateway.upstream import Connection, Request, Script
from tests.support.house import free_port

CHAT = "/v1/chat/completions"


def arms_of(rig: Rig, name: str, count: int, *headers: str, **fields: str) -> list[str]:
    with Client(rig.port) as client:
        return [client.ask(CHAT, {"model": name, **fields}, *headers).headers["x-llmgw-arm"] for _ in range(count)]


@pytest.mark.parametrize("share", [0, 0.5, 10, 33.3, 50, 100])
def test_the_share_is_exact_over_any_run(rig: Rig, share: float) -> None:
    name = rig.serve(says(), canary=says(), share=share)
    taken = [arm == "canary" for arm in arms_of(rig, name, 200)]
    for length in (1, 10, 37, 200):
        for start in range(0, 201 - length, 7):
            assert abs(sum(taken[start : start + length]) - share * length / 100) <= 1
    rig.daemon.await_total(name, 200)
    assert rig.daemon.sample(name, Arm.CANARY).outcomes.get(Outcome.OK, 0) == sum(taken)


def test_samples_of_both_arms_carry_the_canarys_id_and_revision(rig: Rig) -> None:
    name = rig.serve(says(), canary=says(), share=50)
    arms_of(rig, name, 4)
    rig.daemon.await_total(name, 4)
    assert rig.daemon.sample(name, Arm.CANARY).canary == rig.daemon.sample(name).canary == f"canary-of-{name}"
    assert rig.daemon.sample(name, Arm.CANARY).revision == CANARY_REVISION
    assert rig.daemon.sample(name).revision == STABLE_REVISION


@pytest.mark.parametrize("where", ["header", "user", "prompt_cache_key"])
def test_a_session_stays_on_its_arm_and_moves_only_with_the_share(rig: Rig, where: str) -> None:
    stable, canary = rig.upstream(says()), rig.upstream(says())
    name = rig.name()
    keys = [f"key-{index}" for index in range(40)]
    before: set[str] = set()
    for share in (10, 40, 80):
        arm = ArmRoute(CANARY_REVISION, (rig.replica(canary, f"{name}-canary"),))
        stable_arm = ArmRoute(STABLE_REVISION, (rig.replica(stable, name),))
        rig.publish(ModelRoute(name, stable_arm, canary=CanaryRoute("c", share, arm)))
        taken = set()
        for key in keys:
            headers = (f"x-llmgw-session: {key}",) if where == "header" else ()
            fields = {} if where == "header" else {where: key}
            arms = set(arms_of(rig, name, 2, *headers, **fields))
            assert len(arms) == 1
            taken |= {key for arm in arms if arm == "canary"}
        assert before <= taken
        before = taken
    assert 0 < len(before) < len(keys)


def test_forcing_an_arm_moves_no_quota_and_counts_apart(rig: Rig) -> None:
    name = rig.serve(says(), canary=says(), share=25)
    seen = []
    with Client(rig.port) as client:
        for _ in range(40):
            seen.append(client.ask(CHAT, {"model": name}).headers["x-llmgw-arm"] == "canary")
            for arm in ("canary", "stable"):
                assert client.ask(CHAT, {"model": name}, f"x-llmgw-arm: {arm}").headers["x-llmgw-arm"] == arm
    assert sum(seen) == 10
    rig.daemon.await_total(name, 120)
    for arm, count in ((Arm.STABLE, 30), (Arm.CANARY, 10)):
        assert rig.daemon.sample(name, arm).forced == 40
        assert rig.daemon.sample(name, arm).outcomes == {Outcome.OK: count}


def test_an_arm_that_cannot_be_forced_is_refused(rig: Rig) -> None:
    name = rig.serve(says())
    assert ask(rig.port, CHAT, {"model": name}, "x-llmgw-arm: blue").code == "unknown_arm"
    reply = ask(rig.port, CHAT, {"model": name}, "x-llmgw-arm: canary")
    assert (reply.status, reply.code) == (409, "no_canary")


def test_a_canary_without_a_replica_leaves_everything_to_stable(rig: Rig) -> None:
    name = rig.name()
    stable = ArmRoute(STABLE_REVISION, (rig.replica(says(), name),))
    rig.publish(ModelRoute(name, stable, canary=CanaryRoute("c", 50, ArmRoute(CANARY_REVISION))))
    assert arms_of(rig, name, 4) == ["stable"] * 4
    rig.daemon.await_total(name, 4)
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {}
    assert ask(rig.port, CHAT, {"model": name}, "x-llmgw-arm: canary").code == "no_replica"


def test_requests_spread_over_an_arms_replicas_by_load(rig: Rig) -> None:
    release = threading.Event()

    def slow(connection: Connection, request: Request) -> None:
        release.wait(10)
        says()(connection, request)

    engines = [rig.upstream(slow) for _ in range(3)]
    name = rig.name()
    replicas = tuple(rig.replica(engine, name) for engine in engines)
    rig.publish(ModelRoute(name, ArmRoute(STABLE_REVISION, replicas)))
    clients = [Client(rig.port) for _ in range(6)]
    for client in clients:
        client.send(request(CHAT, {"model": name}))
    rig.daemon.wait(lambda: [len(engine.requests) for engine in engines] == [2, 2, 2], "two requests each")
    rig.daemon.wait(lambda: rig.daemon.in_flight(replicas[0].id) == 2, "in flight reported")
    release.set()
    for client in clients:
        assert client.read().status == 200
        client.close()
    rig.daemon.wait(lambda: rig.daemon.in_flight(replicas[0].id) == 0, "none in flight")


# rescue


def refuses_head(connection: Connection, request: Request) -> None:
    connection.reset()


def closes(connection: Connection, request: Request) -> None:
    connection.close()


def talks_nonsense(connection: Connection, request: Request) -> None:
    connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")


def head_then_dies(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.close()


def half_a_head_then_resets(connection: Connection, request: Request) -> None:
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    connection.reset()


def head_then_resets(connection: Connection, request: Request) -> None:
    connection.start_stream()
    connection.reset()


ERROR_EVENT = b'data: {"error":{"message":"out of memory"}}\n\n'
FAILURES: dict[str, Script] = {
    "reset": refuses_head,
    "closed": closes,
    "500": fails(500),
    "503": fails(503),
    "not HTTP": talks_nonsense,
    "half a head": half_a_head_then_resets,
    "head only": head_then_dies,
    "head, then reset": head_then_resets,
    "error first": streams(ERROR_EVENT, DONE),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_canary_that_fails_early_is_rescued_and_charged(rig: Rig, failure: str, stream: bool) -> None:
    name = rig.serve(says("good"), canary=FAILURES[failure])
    reply = ask(rig.port, CHAT, {"model": name, "stream": stream})
    assert reply.status == 200
    assert b"good" in reply.body
    assert (reply.headers["x-llmgw-arm"], reply.headers["x-llmgw-rescued"]) == ("stable", "1")
    # The failure and the rescue may be told of in two reports.
    rig.daemon.wait(lambda: rig.daemon.sample(name, Arm.CANARY).rescued == 1, "the rescue")
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.ERROR: 1}
    assert rig.daemon.sample(name).outcomes == {}


def test_a_canary_that_is_not_there_is_rescued(rig: Rig) -> None:
    name = rig.serve(says("good"), canary=free_port())
    assert ask(rig.port, CHAT, {"model": name}).headers["x-llmgw-rescued"] == "1"


def test_a_forced_canary_shows_its_failure(rig: Rig) -> None:
    name = rig.serve(says(), canary=fails(500))
    reply = ask(rig.port, CHAT, {"model": name}, "x-llmgw-arm: canary")
    assert (reply.status, reply.headers["x-llmgw-arm"]) == (500, "canary")


def test_a_canarys_rejection_is_its_answer(rig: Rig) -> None:
    name = rig.serve(says(), canary=fails(429))
    assert ask(rig.port, CHAT, {"model": name}).status == 429
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.REJECTED: 1}


def test_nothing_is_retried_after_the_first_byte(rig: Rig) -> None:
    def dies_in_the_middle(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(ROLE + HELLO)
        connection.close()

    stable = rig.upstream(says())
    name = rig.serve(stable, canary=dies_in_the_middle)
    with Client(rig.port) as client:
        reply = client.ask(CHAT, {"model": name, "stream": True})
        assert client.is_closed()
    assert not reply.whole
    shown, _, error = reply.body.partition(b'data: {"error"')
    assert shown.endswith(b'"delta":{"content":"Hello"},"finish_reason":null}]}\n\n')
    assert error.endswith(b"\n\n")
    assert DONE not in reply.body
    assert not stable.requests
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name, Arm.CANARY).outcomes == {Outcome.TRUNCATED: 1}


def test_an_event_cut_in_half_is_not_followed_by_another(rig: Rig) -> None:
    def dies_inside_an_event(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(HELLO + STOP[:20])
        connection.close()

    name = rig.serve(dies_inside_an_event)
    with Client(rig.port) as client:
        reply = client.ask(CHAT, {"model": name, "stream": True})
    assert (reply.body, reply.whole) == (HELLO + STOP[:20], False)


def test_a_stable_replica_that_is_not_there_costs_nothing_while_another_is(rig: Rig) -> None:
    name = rig.name()
    replicas = (rig.replica(free_port(), name), rig.replica(says(), name), rig.replica(free_port(), name))
    rig.publish(ModelRoute(name, ArmRoute(STABLE_REVISION, replicas)))
    assert [ask(rig.port, CHAT, {"model": name}).status for _ in range(6)] == [200] * 6
    rig.daemon.await_total(name, 6)
    assert rig.daemon.sample(name).outcomes == {Outcome.OK: 6}


def test_an_arm_that_is_gone_is_a_502_that_says_so(rig: Rig) -> None:
    name = rig.serve(free_port())
    with Client(rig.port) as client:
        reply = client.ask(CHAT, {"model": name})
        assert (reply.status, reply.code) == (502, "upstream_failed")
        assert client.ask("/health").status == 200
    rig.daemon.await_total(name, 1)
    assert rig.daemon.sample(name).outcomes == {Outcome.ERROR: 1}


def test_counts_hold_under_a_mix_of_everything(rig: Rig) -> None:
    dice = random.Random(7)

    def moody(connection: Connection, request: Request) -> None:
        dice.choice([says(), fails(500), refuses_head, head_then_dies, streams(ROLE, HELLO, STOP, DONE)])(
            connection, request
        )

    name = rig.serve(says("good"), canary=moody, share=50)
    replies = [ask(rig.port, CHAT, {"model": name, "stream": bool(n % 2)}) for n in range(60)]
    assert all(reply.status == 200 for reply in replies)
    rig.daemon.await_total(name, 60)
    canary = rig.daemon.sample(name, Arm.CANARY)
    rescued = sum("x-llmgw-rescued" in reply.headers for reply in replies)
    assert sum(canary.outcomes.values()) == 30
    assert (canary.outcomes[Outcome.ERROR], canary.rescued) == (rescued, rescued)
    rig.daemon.wait(lambda: set(rig.daemon.reports[-1].in_flight.values()) == {0}, "nothing left in flight")
