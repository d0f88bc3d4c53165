"""The official client against both arms: what it reads is what engines said."""

import openai
import pytest

from tests.gateway.answers import HELLO, fails, says
from tests.gateway.conftest import Rig
from tests.gateway.upstream import Connection, Request


def client_of(rig: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{rig.port}/v1", api_key="unused", max_retries=0)


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("counts_usage", [False, True])
def test_chat(rig: Rig, arm: str, counts_usage: bool) -> None:
    name = rig.serve(says(), canary=says(), aliases=("nick",), counts_usage=counts_usage)
    client = client_of(rig)
    for asked in (name, "nick"):
        headers = {"x-llmgw-arm": arm}
        whole = client.chat.completions.create(model=asked, messages=[], extra_headers=headers)
        assert (whole.model, whole.choices[0].message.content) == (asked, "Hello")
        stream = client.chat.completions.create(model=asked, messages=[], stream=True, extra_headers=headers)
        chunks = list(stream)
        assert {chunk.model for chunk in chunks} == {asked}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_stream_options_are_honoured(rig: Rig) -> None:
    name = rig.serve(says(), counts_usage=True)
    stream = client_of(rig).chat.completions.create(
        model=name, messages=[], stream=True, stream_options={"include_usage": True}
    )
    *_, last = stream
    assert last.usage is not None
    assert last.usage.completion_tokens == 7


def test_models_and_embeddings(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
        connection.json({"object": "list", "model": request.json["model"], "data": data, "usage": {}})

    name = rig.serve(script)
    client = client_of(rig)
    assert [model.id for model in client.models.list()] == [name]
    reply = client.embeddings.create(model=name, input="x", encoding_format="float")
    assert reply.data[0].embedding == [0.5, 1.0]


def test_errors_arrive_as_the_clients_own(rig: Rig) -> None:
    name = rig.serve(fails(429))
    client = client_of(rig)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="nope", messages=[])
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model=name, messages=[])


def test_a_stream_that_breaks_raises(rig: Rig) -> None:
    def script(connection: Connection, request: Request) -> None:
        connection.start_stream()
        connection.chunk(HELLO)
        connection.close()

    name = rig.serve(script)
    with pytest.raises(openai.APIError, match="broke off"):
        list(client_of(rig).chat.completions.create(model=name, messages=[], stream=True))
