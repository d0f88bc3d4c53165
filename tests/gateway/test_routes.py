"""New tables: swapped whole, acknowledged when nothing can follow the old one, drained replicas reported (G10, K6)."""

import itertools
import socket
import threading

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute
from tests.gateway.answers import says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request

CHAT = "/v1/chat/completions"


def test_after_the_acknowledgement_no_request_follows_the_old_table(rig: Rig) -> None:
    old, new = rig.upstream(says("old")), rig.upstream(says("new"))
    name = rig.name()
    tables = {engine: ModelRoute(name, ArmRoute("a" * 40, (rig.replica(engine, name),))) for engine in (old, new)}
    rig.publish(tables[old])
    stop = threading.Event()
    statuses: list[int] = []

    def press() -> None:
        with Client(rig.port) as client:
            while not stop.is_set():
                statuses.append(client.ask(CHAT, {"model": name}).status)

    threads = [threading.Thread(target=press) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for engine, other in itertools.islice(itertools.cycle([(new, old), (old, new)]), 10):
            rig.publish(tables[engine])
            # What was sent before may still arrive there; what is asked from now on may not.
            seen = len(other.requests)
            for _ in range(5):
                expected = "new" if engine is new else "old"
                assert ask(rig.port, CHAT, {"model": name}).json["choices"][0]["message"]["content"] == expected
            assert len(other.requests) <= seen + len(threads)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200}


def test_a_request_that_was_still_connecting_follows_the_new_table(rig: Rig) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        name = rig.name()
        stable = ArmRoute("a" * 40, (rig.replica(says("stable"), name),))
        port = full.getsockname()[1]
        slow = ArmRoute("b" * 40, (ReplicaRoute(f"slow-{port}", "127.0.0.1", port, name, counts_usage=False),))
        rig.publish(ModelRoute(name, stable, canary=CanaryRoute("c", 100, slow)))
        with Client(rig.port) as client:
            client.send(request(CHAT, {"model": name}))
            rig.daemon.wait(lambda: rig.daemon.in_flight(f"slow-{port}") == 1, "on its way to the canary")
            rig.publish(ModelRoute(name, stable, canary=CanaryRoute("c", 0, slow)))
            # Now the canary could be reached, but its share is gone.
            reached: list[socket.socket] = []
            full.listen(64)
            for filler in fillers:
                filler.close()
            full.settimeout(0.05)
            while not reached:
                try:
                    peer, _ = full.accept()
                except TimeoutError:
                    if client.socket.recv(1, socket.MSG_PEEK):
                        break
                    continue
                peer.settimeout(0.2)
                try:
                    if peer.recv(1000):
                        reached.append(peer)
                except OSError:
                    pass
            assert not reached
            assert client.read().json["choices"][0]["message"]["content"] == "stable"


def test_a_drained_replica_is_reported_at_once_and_its_requests_end_in_peace(rig: Rig) -> None:
    release = threading.Event()

    def slow(connection: Connection, request: Request) -> None:
        release.wait(10)
        says("old")(connection, request)

    name = rig.name()
    old = rig.replica(slow, name)
    rig.publish(ModelRoute(name, ArmRoute("a" * 40, (old,))))
    with Client(rig.port) as client:
        client.send(request(CHAT, {"model": name}))
        rig.daemon.wait(lambda: rig.daemon.in_flight(old.id) == 1, "in flight")
        rig.publish(ModelRoute(name, ArmRoute("a" * 40, (rig.replica(says("new"), name),))))
        assert ask(rig.port, CHAT, {"model": name}).json["choices"][0]["message"]["content"] == "new"
        rig.daemon.wait(lambda: rig.daemon.reports[-1].routes_version == rig.daemon.applied[-1], "a later report")
        assert rig.daemon.in_flight(old.id) == 1
        release.set()
        assert client.read().json["choices"][0]["message"]["content"] == "old"
        told = [report.in_flight[old.id] for report in rig.daemon.reports if old.id in report.in_flight]
        rig.daemon.wait(lambda: 0 in (r.in_flight.get(old.id) for r in rig.daemon.reports[-3:]), "drained")
        assert told[-1] in (0, 1)
        rig.daemon.wait(lambda: _unheard(rig, old.id), "no longer reported")


def test_a_replica_without_requests_is_reported_drained_when_it_leaves(rig: Rig) -> None:
    name = rig.name()
    replica = rig.replica(says(), name)
    rig.publish(ModelRoute(name, ArmRoute("a" * 40, (replica,))))
    before = len(rig.daemon.reports)
    rig.publish(ModelRoute(name, ArmRoute("a" * 40)))
    rig.daemon.wait(lambda: any(r.in_flight.get(replica.id) == 0 for r in rig.daemon.reports[before:]), "drained")


def test_kept_connections_to_a_replica_that_left_are_closed(rig: Rig) -> None:
    gone = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        says()(connection, request)
        if connection.wait_gone(3):
            gone.set()

    name = rig.serve(script)
    assert ask(rig.port, CHAT, {"model": name}).status == 200
    rig.publish(ModelRoute(name, ArmRoute("a" * 40)))
    assert gone.wait(20)


def test_a_replica_that_comes_back_serves_again(rig: Rig) -> None:
    name = rig.name()
    route = ModelRoute(name, ArmRoute("a" * 40, (rig.replica(says(), name),)))
    for _ in range(3):
        rig.publish(route)
        assert ask(rig.port, CHAT, {"model": name}).status == 200
        rig.publish(ModelRoute(name, ArmRoute("a" * 40)))
        assert ask(rig.port, CHAT, {"model": name}).status == 503


def test_promote_moves_the_canarys_replica_without_a_failed_request(rig: Rig) -> None:
    stable, canary = rig.upstream(says("stable")), rig.upstream(says("canary"))
    name = rig.name()
    old, new = rig.replica(stable, name), rig.replica(canary, f"{name}-canary")
    rig.publish(ModelRoute(name, ArmRoute("a" * 40, (old,)), canary=CanaryRoute("c", 50, ArmRoute("b" * 40, (new,)))))
    stop = threading.Event()
    statuses: list[int] = []

    def press() -> None:
        with Client(rig.port) as client:
            while not stop.is_set():
                statuses.append(client.ask(CHAT, {"model": name, "stream": True}).status)

    thread = threading.Thread(target=press)
    thread.start()
    rig.publish(ModelRoute(name, ArmRoute("b" * 40, (new,))))
    reply = ask(rig.port, CHAT, {"model": name})
    stop.set()
    thread.join()
    assert (reply.json["model"], reply.headers["x-llmgw-arm"]) == (name, "stable")
    assert set(statuses) == {200}


def _unheard(rig: Rig, replica: str) -> bool:
    return replica not in rig.daemon.reports[-1].in_flight
