from tests.gateway.client import ask
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request


def hello(connection: Connection, request: Request) -> None:
    connection.json({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "model": request.json["model"]})


def test_a_chat_answer_passes(rig: Rig) -> None:
    name = rig.serve(hello)
    reply = ask(rig.port, "/v1/chat/completions", {"model": name})
    assert reply.status == 200, reply
    assert reply.headers["x-llmgw-arm"] == "stable"
    rig.daemon.await_total(name, 1)
    print(rig.daemon.sample(name))
