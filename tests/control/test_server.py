"""The control socket: a reply for everything that is a request, the end for what is no frame."""

import getpass
import stat
import struct
from collections.abc import Iterator

import pytest

from llmgwd.protocol import messages as m
from llmgwd.protocol.framing import frame
from tests.support.control_peer import Peer
from tests.support.house import REPO, House, commit, house_on, wait_until
from tests.support.toy_engine import Behaviour


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house_on(tmp_path_factory.mktemp("house")) as shared:
        yield shared


@pytest.fixture
def peer(house: House) -> Iterator[Peer]:
    made = Peer(house.socket)
    yield made
    made.socket.close()


@pytest.fixture
def greeted(peer: Peer) -> Peer:
    peer.say(m.Hello("a test"))
    assert isinstance(peer.hear(), m.Hello)
    return peer


def test_the_daemon_says_hello_first(peer: Peer) -> None:
    hello = peer.hear()
    assert hello.program.startswith("llmgwd ")
    assert hello.version == m.PROTOCOL_VERSION


def test_requests_are_answered_one_after_another(greeted: Peer) -> None:
    greeted.say(m.ListModels())
    greeted.say(m.ListJobs())
    greeted.say(m.GetStatus())
    assert isinstance(greeted.hear(), m.Models)
    assert isinstance(greeted.hear(), m.Jobs)
    assert isinstance(greeted.hear(), m.Status)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "BrewCoffee"},
        {"type": "ShowModel"},
        {"type": "SetPercent", "name": "chat", "percent": "ten"},
        [1, 2],
        None,
    ],
    ids=["unknown", "incomplete", "wrong type", "no mapping", "nil"],
)
def test_what_is_not_understood_gets_a_reply_and_the_connection_goes_on(greeted: Peer, message: object) -> None:
    greeted.say(message)
    failure = greeted.hear()
    assert isinstance(failure, m.Failure)
    assert failure.code == "unknown_request"
    greeted.say(m.ListModels())
    assert isinstance(greeted.hear(), m.Models)


def test_fields_of_a_newer_client_are_passed_over(greeted: Peer) -> None:
    greeted.say({"type": "ListModels", "sorted_by": "age"})
    assert isinstance(greeted.hear(), m.Models)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">I", 2**31), id="too long"),
        pytest.param(frame(b"\xc1\xc1"), id="no MessagePack"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
def test_what_is_no_frame_is_answered_and_closed(greeted: Peer, data: bytes) -> None:
    greeted.socket.sendall(data)
    failure = greeted.hear()
    assert isinstance(failure, m.Failure)
    assert failure.code == "bad_frame"
    assert greeted.hear() is None


def test_another_version_is_told_so(peer: Peer) -> None:
    assert isinstance(peer.hear(), m.Hello)
    peer.say(m.Hello("llmgw 99", version=99))
    failure = peer.hear()
    assert isinstance(failure, m.Failure)
    assert "version 99" in failure.message
    assert peer.hear() is None


def test_a_verb_goes_on_when_its_caller_leaves(house: House, greeted: Peer) -> None:
    commit(house, Behaviour())
    greeted.say(m.AddModel("left", m.WeightsChoice(repo=REPO), engine="toy"))
    assert isinstance(greeted.hear(), m.Started)
    greeted.socket.close()
    wait_until(lambda: house.ctl("model", "show", "left").returncode == 0 and house.model("left")["ready"] == 1)


def test_only_user_and_group_may_connect(house: House) -> None:
    assert stat.S_IMODE(house.socket.stat().st_mode) == 0o660
    assert stat.S_IMODE((house.state / "logs").stat().st_mode) == 0o700


def test_who_asked_is_the_kernels_word(house: House, greeted: Peer) -> None:
    commit(house, Behaviour(), repo="acme/mine")
    greeted.say(m.AddModel("mine", m.WeightsChoice(repo="acme/mine"), engine="toy"))
    assert greeted.hear().job.by == getpass.getuser()
