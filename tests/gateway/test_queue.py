"""More requests than replicas have room for: who waits, who goes next, and who is turned away (G11)."""

import threading
from pathlib import Path

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, Finish, LineLength, ModelRoute
from llmgwd.protocol.samples import Arm, Outcome
from llmgwd.verdict.sketch import quantile
from tests.gateway.answers import fails, says, streams
from tests.gateway.client import Client, Reply, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request
from tests.support.house import free_port, wait_until

CHAT = "/v1/chat/completions"
STABLE_REVISION, CANARY_REVISION = "a" * 40, "b" * 40


class Gated:
    """An engine that answers one request for each `release`."""

    def __init__(self, content: str = "Hello") -> None:
        self._answer = says(content)
        self._allowed = threading.Semaphore(0)
        self.has_one = threading.Event()

    def __call__(self, connection: Connection, request: Request) -> None:
        self.has_one.set()
        if self._allowed.acquire(timeout=20):
            self._answer(connection, request)
        else:
            connection.close()

    def release(self, count: int = 1) -> None:
        self._allowed.release(count)


class Crowd:
    """Clients that each sent one numbered request, in this order, the first of them to an engine that is slow."""

    def __init__(self, rig: Rig, name: str, gate: Gated) -> None:
        self._rig = rig
        self._name = name
        self._gate = gate
        self.clients: list[Client] = []

    def grow(self, count: int, *headers: str) -> None:
        """Each request is known to have come before the next one."""
        for _ in range(count):
            client = Client(self._rig.port)
            # The reply to what follows shows that what came before was taken in: connections are read in order.
            client.send(request(CHAT, {"model": self._name, "n": len(self.clients)}, *headers))
            self.clients.append(client)
            assert ask(self._rig.port, "/health").status == 200
            assert self._gate.has_one.wait(10)

    def read(self, index: int) -> Reply:
        return self.clients[index].read()

    def close(self) -> None:
        for client in self.clients:
            client.close()


def route(rig: Rig, name: str, *engines: object) -> ModelRoute:
    return ModelRoute(name, ArmRoute(STABLE_REVISION, tuple(rig.replica(each, name) for each in engines)))  # type: ignore[arg-type]


def test_requests_wait_in_order_and_past_the_queue_are_turned_away(tight_rig: Rig) -> None:
    gate = Gated()
    engine = tight_rig.upstream(gate)
    name = tight_rig.serve(engine)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    reply = ask(tight_rig.port, CHAT, {"model": name})
    assert (reply.status, reply.code) == (429, "queue_full")
    assert int(reply.headers["retry-after"]) > 0
    tight_rig.daemon.wait(lambda: LineLength(name, Arm.STABLE, 2) in tight_rig.daemon.lines, "the line's length")
    for index in range(3):
        gate.release()
        assert crowd.read(index).status == 200
    assert [seen.json["n"] for seen in engine.requests] == [0, 1, 2]
    crowd.close()
    tight_rig.daemon.await_total(name, 3)
    tight_rig.daemon.wait(lambda: tight_rig.daemon.lines == (), "nobody in line")
    sample = tight_rig.daemon.sample(name)
    assert (sample.outcomes, sample.turned_away) == ({Outcome.OK: 3}, 1)
    assert sum(sample.waited.values()) == 2


def test_waiting_in_line_is_part_of_the_time_to_the_first_token(tight_rig: Rig) -> None:
    gate = Gated()
    name = tight_rig.serve(gate)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(1)
    with Client(tight_rig.port) as client:
        client.send(request(CHAT, {"model": name, "stream": True}))
        threading.Event().wait(0.3)
        gate.release(2)
        assert client.read().status == 200
    crowd.close()
    tight_rig.daemon.await_total(name, 2)
    sample = tight_rig.daemon.sample(name)
    ttft, waited, duration = (quantile(each, 0.99) for each in (sample.ttft, sample.waited, sample.duration))
    assert ttft is not None
    assert waited is not None
    assert duration is not None
    assert waited <= ttft <= duration
    assert waited > 0.2


def test_a_client_that_leaves_while_waiting_is_known_at_once(tight_rig: Rig) -> None:
    gate = Gated()
    engine = tight_rig.upstream(gate)
    name = tight_rig.serve(engine)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    crowd.clients[1].close()
    tight_rig.daemon.await_total(name, 1)
    assert tight_rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}
    gate.release(2)
    assert [crowd.read(index).status for index in (0, 2)] == [200, 200]
    assert [seen.json["n"] for seen in engine.requests] == [0, 2]
    crowd.close()


def test_a_new_replica_takes_those_who_wait(tight_rig: Rig) -> None:
    gate = Gated()
    engine = tight_rig.upstream(gate)
    name = tight_rig.name()
    tight_rig.publish(route(tight_rig, name, engine))
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    tight_rig.publish(route(tight_rig, name, engine, says("new")))
    for index in (1, 2):
        assert crowd.read(index).json["choices"][0]["message"]["content"] == "new"
    gate.release()
    assert crowd.read(0).status == 200
    crowd.close()


def test_those_who_wait_for_a_replica_that_is_replaced_go_to_its_successor_in_order(tight_rig: Rig) -> None:
    gate = Gated()
    name = tight_rig.name()
    tight_rig.publish(route(tight_rig, name, gate))
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    new = tight_rig.upstream(says("new"))
    tight_rig.publish(route(tight_rig, name, new))
    assert [crowd.read(index).status for index in (1, 2)] == [200, 200]
    assert [seen.json["n"] for seen in new.requests] == [1, 2]
    gate.release()
    assert crowd.read(0).status == 200
    crowd.close()


@pytest.mark.parametrize(("left", "status"), [(True, 503), (False, 404)], ids=["no replica", "no model"])
def test_those_who_wait_for_what_is_gone_are_told(tight_rig: Rig, left: bool, status: int) -> None:
    gate = Gated()
    name = tight_rig.serve(gate)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    tight_rig.publish(*([route(tight_rig, name)] if left else []))
    for index in (1, 2):
        reply = crowd.read(index)
        assert reply.status == status
        assert reply.code == ("no_replica" if left else "model_not_found")
        assert ("retry-after" in reply.headers) == left
    gate.release()
    assert crowd.read(0).status == 200
    crowd.close()


def test_those_who_wait_for_a_canary_that_is_taken_out_go_to_stable(tight_rig: Rig) -> None:
    gate = Gated()
    canary = tight_rig.upstream(gate)
    name = tight_rig.name()
    stable = ArmRoute(STABLE_REVISION, (tight_rig.replica(says("stable"), name),))
    arm = ArmRoute(CANARY_REVISION, (tight_rig.replica(canary, f"{name}-canary"),))
    tight_rig.publish(ModelRoute(name, stable, canary=CanaryRoute("c", 100, arm)))
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    # Before the canary has seen the first, that one too would be sent elsewhere.
    wait_until(lambda: canary.requests)
    tight_rig.publish(ModelRoute(name, stable))
    for index in (1, 2):
        reply = crowd.read(index)
        assert (reply.status, reply.headers["x-llmgw-arm"]) == (200, "stable")
    assert len(canary.requests) == 1
    gate.release()
    crowd.close()


def test_a_full_canary_turns_nobody_away_and_is_charged(tight_rig: Rig) -> None:
    gate = Gated()
    name = tight_rig.serve(says("stable"), canary=gate)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    reply = ask(tight_rig.port, CHAT, {"model": name})
    assert (reply.status, reply.headers["x-llmgw-arm"], reply.headers["x-llmgw-rescued"]) == (200, "stable", "1")
    gate.release(3)
    assert [crowd.read(index).headers["x-llmgw-arm"] for index in range(3)] == ["canary"] * 3
    crowd.close()
    tight_rig.daemon.wait(lambda: judged(tight_rig, name, Arm.CANARY) == (4, 1), "the canary's failure")
    assert tight_rig.daemon.sample(name).outcomes == {}
    assert tight_rig.daemon.sample(name, apart=True).outcomes == {Outcome.OK: 1}
    canary = tight_rig.daemon.sample(name, Arm.CANARY)
    assert (canary.outcomes, canary.rescued) == ({Outcome.OK: 3, Outcome.ERROR: 1}, 1)


def test_a_full_line_of_stable_is_a_bad_answer_of_stable(tight_rig: Rig) -> None:
    gate = Gated()
    name = tight_rig.serve(gate, canary=says(), share=0.001)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    assert ask(tight_rig.port, CHAT, {"model": name}).code == "queue_full"
    gate.release(3)
    assert [crowd.read(index).status for index in range(3)] == [200] * 3
    crowd.close()
    tight_rig.daemon.wait(lambda: judged(tight_rig, name, Arm.STABLE) == (4, 1), "the failure of stable")


def test_with_both_lines_full_it_is_stable_that_says_so_and_the_canary_that_is_charged(tight_rig: Rig) -> None:
    gates = Gated(), Gated()
    name = tight_rig.serve(gates[0], canary=gates[1], share=50)
    crowds = [Crowd(tight_rig, name, gate) for gate in gates]
    for crowd, arm in zip(crowds, ("stable", "canary"), strict=True):
        crowd.grow(3, f"x-llmgw-arm: {arm}")
    replies = [ask(tight_rig.port, CHAT, {"model": name}) for _ in range(4)]
    assert [reply.code for reply in replies] == ["queue_full"] * 4
    for gate, crowd in zip(gates, crowds, strict=True):
        gate.release(3)
        assert [crowd.read(index).status for index in range(3)] == [200] * 3
        crowd.close()
    tight_rig.daemon.wait(
        lambda: [judged(tight_rig, name, arm) for arm in Arm] == [(2, 2), (2, 2)], "both arms are charged alike"
    )


def judged(rig: Rig, name: str, arm: Arm) -> tuple[int, int]:
    """Requests that ended in some look of the verdict, and how many of them badly."""
    looks = [look for report in rig.daemon.distinct() for look in report.looks]
    mine = [look for look in looks if (look.canary, look.arm) == (f"canary-of-{name}", arm)]
    return sum(look.ended for look in mine), sum(look.bad for look in mine)


def test_a_rescue_does_not_go_to_the_end_of_the_line(tight_rig: Rig) -> None:
    gate = Gated()
    engine = tight_rig.upstream(gate)
    name = tight_rig.serve(engine, canary=fails(500), share=0)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    models = tight_rig.daemon.routes.models if tight_rig.daemon.routes else ()
    (model,) = models
    assert model.canary is not None
    tight_rig.publish(
        ModelRoute(name, model.stable, canary=CanaryRoute(model.canary.id, 100, model.canary.arm)),
    )
    # All who wait were stable's before; the one that comes now is the canary's, which fails it.
    crowd.grow(1)
    tight_rig.daemon.wait(
        lambda: Outcome.ERROR in tight_rig.daemon.sample(name, Arm.CANARY).outcomes, "the canary's failure"
    )
    for index in (0, 3, 1, 2):
        gate.release()
        assert crowd.read(index).status == 200
    assert [seen.json["n"] for seen in engine.requests] == [0, 3, 1, 2]
    crowd.close()


def test_a_replica_that_is_not_there_does_not_hold_up_a_line_for_another(tight_rig: Rig) -> None:
    gate = Gated()
    name = tight_rig.name()
    tight_rig.publish(route(tight_rig, name, gate, free_port()))
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(3)
    gate.release(3)
    assert [crowd.read(index).status for index in range(3)] == [200] * 3
    crowd.close()
    tight_rig.daemon.await_total(name, 3)
    assert tight_rig.daemon.sample(name).outcomes == {Outcome.OK: 3}


def test_pipelined_requests_wait_their_turn(tight_rig: Rig) -> None:
    gate = Gated()
    engine = tight_rig.upstream(gate)
    name = tight_rig.serve(engine)
    crowd = Crowd(tight_rig, name, gate)
    crowd.grow(1)
    with Client(tight_rig.port) as client:
        client.send(b"".join(request(CHAT, {"model": name, "n": n}) for n in (1, 2, 3)))
        gate.release(4)
        assert [client.read().status for _ in range(3)] == [200] * 3
    assert [seen.json["n"] for seen in engine.requests] == [0, 1, 2, 3]
    crowd.close()


def test_one_who_waits_too_long_is_told(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--max-in-flight", "1", "--reply-timeout", "0.6")
    try:
        beats = threading.Event()

        def busy(connection: Connection, request: Request) -> None:
            connection.start_stream()
            while not beats.wait(0.1):
                connection.chunk(b": ping\n\n")

        name = rig.serve(busy)
        with Client(rig.port) as first:
            first.send(request(CHAT, {"model": name, "stream": True}))
            first.read_until(b"ping")
            reply = ask(rig.port, CHAT, {"model": name})
            assert (reply.status, reply.code) == (503, "queue_timeout")
            assert "retry-after" in reply.headers
        beats.set()
        rig.daemon.wait(lambda: rig.daemon.sample(name).turned_away == 1, "turned away")
    finally:
        rig.close()


def test_one_who_waits_too_long_for_a_canary_is_rescued(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--max-in-flight", "1", "--reply-timeout", "0.6")
    try:
        beats = threading.Event()

        def busy(connection: Connection, request: Request) -> None:
            connection.start_stream()
            while not beats.wait(0.1):
                connection.chunk(b": ping\n\n")

        name = rig.serve(says("stable"), canary=busy, share=99.999)
        with Client(rig.port) as first:
            first.send(request(CHAT, {"model": name, "stream": True}, "x-llmgw-arm: canary"))
            first.read_until(b"ping")
            reply = ask(rig.port, CHAT, {"model": name})
            assert (reply.status, reply.headers["x-llmgw-arm"], reply.headers["x-llmgw-rescued"]) == (
                200,
                "stable",
                "1",
            )
        beats.set()
        rig.daemon.wait(lambda: judged(rig, name, Arm.CANARY) == (1, 1), "the canary's failure")
        assert judged(rig, name, Arm.STABLE) == (0, 0)
    finally:
        rig.close()


def test_a_finish_serves_those_who_wait(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--max-in-flight", "1")
    try:
        gate = Gated()
        name = rig.serve(gate)
        crowd = Crowd(rig, name, gate)
        crowd.grow(3)
        with Client(rig.port) as idle:
            assert idle.ask("/health").status == 200
            rig.daemon.send(Finish(20))
            assert idle.is_closed()
        gate.release(3)
        replies = [crowd.read(index) for index in range(3)]
        assert [(reply.status, reply.headers["connection"]) for reply in replies] == [(200, "close")] * 3
        assert rig.process.wait(10) == 0
    finally:
        rig.close()


def test_a_finish_that_cannot_serve_them_in_time_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "--max-in-flight", "1")
    try:
        gate = Gated()
        name = rig.serve(gate)
        crowd = Crowd(rig, name, gate)
        crowd.grow(3)
        rig.daemon.send(Finish(0.2))
        for index in (1, 2):
            reply = crowd.read(index)
            assert (reply.status, reply.code, reply.headers["connection"]) == (503, "finishing", "close")
            assert crowd.clients[index].is_closed()
        assert crowd.clients[0].is_closed()
        assert rig.process.wait(10) == 0
        rig.daemon.wait(lambda: rig.daemon.sample(name).turned_away == 2, "turned away")
        assert rig.daemon.sample(name).outcomes == {Outcome.CANCELLED: 1}
    finally:
        rig.close()


# stable down


def down(rig: Rig, name: str, canary: object, share: float) -> ModelRoute:
    arm = ArmRoute(CANARY_REVISION, (rig.replica(canary, f"{name}-canary"),))  # type: ignore[arg-type]
    return ModelRoute(name, ArmRoute(STABLE_REVISION), canary=CanaryRoute("c", share, arm))


def test_with_stable_down_the_canary_serves_its_share_and_is_compared_on_its_own_only(rig: Rig) -> None:
    name = rig.name()
    rig.publish(down(rig, name, says(), 25))
    with Client(rig.port) as client:
        replies = [client.ask(CHAT, {"model": name}) for _ in range(40)]
        sticky = [client.ask(CHAT, {"model": name}, f"x-llmgw-session: {n}") for n in range(10)]
    assert {(reply.status, reply.headers["x-llmgw-arm"]) for reply in (*replies, *sticky)} == {(200, "canary")}
    rig.daemon.wait(lambda: sum(_canary(rig, name, apart).get(Outcome.OK, 0) for apart in (False, True)) == 50, "all")
    sample = rig.daemon.sample(name, Arm.CANARY)
    assert 10 <= sample.outcomes[Outcome.OK] <= 20
    assert sample.stood_in == 50 - sample.outcomes[Outcome.OK]
    assert rig.daemon.sample(name).outcomes == {}


def test_a_canary_that_is_given_nothing_does_not_stand_in(rig: Rig) -> None:
    name = rig.name()
    rig.publish(down(rig, name, says(), 0))
    assert ask(rig.port, CHAT, {"model": name}).code == "no_replica"


def test_a_stand_in_that_fails_shows_it_and_is_not_charged(rig: Rig) -> None:
    name = rig.name()
    rig.publish(down(rig, name, streams(b'data: {"error":{"message":"x"}}\n\n'), 0.001))
    assert b"error" in ask(rig.port, CHAT, {"model": name, "stream": True}).body
    rig.daemon.wait(lambda: _canary(rig, name, True) == {Outcome.ERROR: 1}, "the failure")
    assert _canary(rig, name, False) == {}


def _canary(rig: Rig, name: str, apart: bool) -> dict[Outcome, int]:
    return rig.daemon.sample(name, Arm.CANARY, apart=apart).outcomes
