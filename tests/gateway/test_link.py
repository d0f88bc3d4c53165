"""The daemon comes and goes; routes go on and samples arrive exactly once (G10)."""

import socket
import threading

from llmgwd.protocol.link import ArmRoute, ModelRoute, Routes
from llmgwd.protocol.samples import Outcome
from tests.gateway.answers import DONE, HELLO, STOP, fails, says
from tests.gateway.client import Client, ask, request
from tests.gateway.conftest import Rig
from tests.gateway.daemon import Daemon
from tests.gateway.upstream import Connection, Request

CHAT = "/v1/chat/completions"


def test_a_worker_says_who_it_is(own_rig: Rig) -> None:
    own_rig.daemon.wait(lambda: bool(own_rig.daemon.hellos), "hello")
    (hello,) = own_rig.daemon.hellos
    assert (hello.worker, hello.pid) == ("w0-test", own_rig.process.pid)


def test_samples_survive_the_daemons_absence_and_arrive_once(own_rig: Rig) -> None:
    daemon = own_rig.daemon
    name = own_rig.serve(says())
    for _ in range(3):
        ask(own_rig.port, CHAT, {"model": name})
    daemon.await_total(name, 3)
    daemon.stop()
    for _ in range(5):
        assert ask(own_rig.port, CHAT, {"model": name}).status == 200
    daemon.start()
    daemon.await_total(name, 8)
    daemon.wait(lambda: len(daemon.hellos) == 2, "a second hello")
    ask(own_rig.port, CHAT, {"model": name})
    daemon.await_total(name, 9)
    assert daemon.sample(name).outcomes == {Outcome.OK: 9}


def test_a_thousand_requests_without_a_daemon_arrive_once_each(own_rig: Rig) -> None:
    daemon = own_rig.daemon
    name = own_rig.serve(says())
    # The last report before it goes is one whose answer is lost.
    daemon.acknowledges = False
    assert ask(own_rig.port, CHAT, {"model": name}).status == 200
    daemon.await_total(name, 1)
    daemon.stop()
    with Client(own_rig.port) as client:
        for _ in range(20):
            client.send(request(CHAT, {"model": name}) * 50)
            assert [client.read().status for _ in range(50)] == [200] * 50
    daemon.acknowledges = True
    daemon.start()
    daemon.await_total(name, 1001)
    ask(own_rig.port, CHAT, {"model": name})
    daemon.await_total(name, 1002)
    assert daemon.sample(name).outcomes == {Outcome.OK: 1002}
    assert sum(daemon.sample(name).duration.values()) == 1002


def test_an_unacknowledged_report_is_sent_again_as_it_was(own_rig: Rig) -> None:
    daemon = own_rig.daemon
    name = own_rig.serve(says())
    daemon.acknowledges = False
    # The first report may be one without samples; the one that carries them is what must come again.
    ask(own_rig.port, CHAT, {"model": name})
    daemon.wait(lambda: bool(daemon.reports), "a report")
    for _ in range(4):
        ask(own_rig.port, CHAT, {"model": name})
    kept = daemon.reports[-1]
    daemon.stop()
    daemon.acknowledges = True
    daemon.start()
    daemon.await_total(name, 5)
    assert daemon.sample(name).outcomes == {Outcome.OK: 5}
    again = [report for report in daemon.reports if report.seq == kept.seq]
    assert len(again) >= 2
    assert all(report.samples == kept.samples for report in again)
    assert [report.seq for report in daemon.distinct()] == list(range(1, len(daemon.distinct()) + 1))


def test_a_restarted_daemon_may_count_its_versions_from_one(own_rig: Rig) -> None:
    daemon = own_rig.daemon
    name = own_rig.serve(says("old"))
    daemon.publish(Routes(50, (ModelRoute(name, ArmRoute("a" * 40, (own_rig.replica(says("old"), name),))),)))
    daemon.stop()
    daemon.routes = Routes(1, (ModelRoute(name, ArmRoute("a" * 40, (own_rig.replica(says("new"), name),))),))
    daemon.applied.clear()
    daemon.start()
    daemon.wait(lambda: daemon.applied == [1], "the new life's table")
    assert ask(own_rig.port, CHAT, {"model": name}).json["choices"][0]["message"]["content"] == "new"


def test_a_report_that_is_never_taken_is_tried_with_growing_pauses_said_once_and_holds_up_no_routes(
    own_rig: Rig,
) -> None:
    daemon = own_rig.daemon
    name = own_rig.serve(says())
    daemon.cuts_reports = True
    ask(own_rig.port, CHAT, {"model": name})
    daemon.wait(lambda: len(daemon.hellos) >= 6, "five links that came to nothing")
    # Each had heard that the routes are followed before the report came.
    assert daemon.applied == [1] * len(daemon.applied)
    assert len(daemon.applied) >= 5
    said = own_rig.log.read_text()
    assert said.count("link lost again before a report was taken") == 1
    assert said.count("link lost path") <= 1
    daemon.cuts_reports = False
    daemon.await_total(name, 1)
    assert len({report.seq for report in daemon.reports if report.samples}) == 1


def test_nonsense_on_the_link_costs_the_link_and_nothing_else(own_rig: Rig) -> None:
    daemon: Daemon = own_rig.daemon
    name = own_rig.serve(says())
    assert daemon._peer is not None
    daemon._peer.sendall(b"\x00\x00\x00\x03abc")
    daemon.wait(lambda: len(daemon.hellos) == 2, "a second hello")
    assert ask(own_rig.port, CHAT, {"model": name}).status == 200
    daemon.await_total(name, 1)


def test_a_quiet_worker_stays_quiet(own_rig: Rig) -> None:
    name = own_rig.serve(says())
    ask(own_rig.port, CHAT, {"model": name})
    own_rig.daemon.await_total(name, 1)
    own_rig.daemon.wait(lambda: set(own_rig.daemon.reports[-1].in_flight.values()) == {0}, "at rest")
    told = len(own_rig.daemon.reports)
    # Ten turns of the report clock, seen through something that the worker itself must do meanwhile.
    for _ in range(10):
        own_rig.publish(*(own_rig.daemon.routes.models if own_rig.daemon.routes else ()))
    assert len(own_rig.daemon.reports) == told


def test_reports_name_the_replicas_that_answer_and_not_those_that_fail(own_rig: Rig) -> None:
    well, ill = own_rig.upstream(says()), own_rig.upstream(fails(500))
    names = [own_rig.name() for _ in range(2)]
    routes = [own_rig.replica(each, name) for each, name in zip((well, ill), names, strict=True)]
    arms = [ArmRoute("a" * 40, (route,)) for route in routes]
    own_rig.publish(*(ModelRoute(name, arm) for name, arm in zip(names, arms, strict=True)))
    for name in names:
        ask(own_rig.port, CHAT, {"model": name})
    for name in names:
        own_rig.daemon.await_total(name, 1)
    assert {each for report in own_rig.daemon.reports for each in report.heard} == {routes[0].id}


def test_a_stream_is_heard_of_while_it_runs(own_rig: Rig) -> None:
    release = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        while not release.wait(0.05):
            connection.chunk(HELLO)
        connection.stream_end(STOP + DONE)

    name = own_rig.serve(script)
    daemon = own_rig.daemon
    with Client(own_rig.port) as client:
        client.send(request(CHAT, {"model": name, "stream": True}, "Connection: close"))
        daemon.wait(lambda: sum(bool(report.heard) for report in daemon.reports) >= 3, "heard of three times")
        release.set()
        client.read_rest()


def test_a_worker_hands_its_listening_socket_over_with_its_hello(own_rig: Rig) -> None:
    own_rig.daemon.wait(lambda: bool(own_rig.daemon.hellos), "a first hello")
    own_rig.daemon.stop()
    path = own_rig.daemon.path
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        peer, _ = listener.accept()
        with peer:
            hello, (handed,), _, _ = socket.recv_fds(peer, 65536, 4)
    assert hello
    with socket.socket(fileno=handed) as shared:
        assert shared.getsockname() == ("127.0.0.1", own_rig.port)
        # Whoever connects after the worker is gone waits here.
        own_rig.process.kill()
        own_rig.process.wait()
        with socket.create_connection(("127.0.0.1", own_rig.port)):
            pass
