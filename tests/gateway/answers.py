"""What engines say: chat chunks and answers in the shapes of vLLM and llama.cpp, and scripts that say them."""

import json
from typing import Any

from tests.gateway.upstream import Connection, Request, Script

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, model: str = "engine-name") -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]})


def usage_chunk(prompt: int, completion: int, model: str = "engine-name", **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"id": "c1", "created": 1, "model": model, "choices": [], "usage": usage, **more})


ROLE = chunk({"role": "assistant", "content": ""})
HELLO = chunk({"content": "Hello"})
WORLD = chunk({"content": " world"})
STOP = chunk({}, "stop")
PLAIN_STREAM = (ROLE, HELLO, WORLD, STOP, DONE)


def answer(content: str = "Hello", finish: str = "stop", model: str = "engine-name", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return {"id": "c1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage, **more}


def says(content: str = "Hello") -> Script:
    """An engine that answers chats, streamed or not, with this content under the model name it was asked for."""

    def script(connection: Connection, request: Request) -> None:
        asked = request.json
        if asked.get("stream"):
            model = asked["model"]
            connection.stream(
                chunk({"role": "assistant", "content": ""}, model=model),
                chunk({"content": content}, model=model),
                chunk({}, "stop", model=model),
                *([usage_chunk(5, 7, model)] if (asked.get("stream_options") or {}).get("include_usage") else []),
                DONE,
            )
        else:
            connection.json(answer(content, model=asked["model"]))

    return script


def streams(*events: bytes) -> Script:
    def script(connection: Connection, request: Request) -> None:
        connection.stream(*events)

    return script


def fails(status: int = 500) -> Script:
    def script(connection: Connection, request: Request) -> None:
        connection.json(
            {"error": {"message": "engine failed", "type": "server_error", "param": None, "code": "x"}}, status
        )

    return script
