"""What shows that an engine serves: its health page, then an answer to a real request."""

import ssl
import time
from functools import cache
from typing import Any, NamedTuple

import httpx2
import msgspec

from llmgwd.domain.errors import LlmgwError

PROMPT = "Say hello in one short sentence."
CONNECT_TIMEOUT_S = 5.0
HEALTH_TIMEOUT_S = 10.0
"""Some generate a token for it, which takes longest right after they have loaded."""
LISTING_TIMEOUT_S = 2.0


class Answer(NamedTuple):
    """A real completion. `tokens_per_s` is None when the engine does not say how many tokens it was."""

    text: str
    tokens_per_s: float | None


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Timings(msgspec.Struct):
    predicted_per_second: float | None = None


class _Reply(msgspec.Struct):
    """What is read of a completion or an embedding."""

    choices: list[_Choice] | None = None
    data: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None


class _Listed(msgspec.Struct):
    """A model in `/v1/models`; `root` is where vLLM has its weights from."""

    id: str = ""
    root: str | None = None


class _Listing(msgspec.Struct):
    data: list[_Listed] = []


def client(address: str, key: str = "") -> httpx2.AsyncClient:
    """For one engine. Neither the environment's proxies nor its netrc have a say in it."""
    return httpx2.AsyncClient(
        base_url=address,
        headers={"authorization": f"Bearer {key}"} if key else {},
        trust_env=False,
        verify=_trusted() if address.startswith("https:") else False,
        timeout=HEALTH_TIMEOUT_S,
    )


@cache
def _trusted() -> ssl.SSLContext:
    """The system's certificates, and those that SSL_CERT_FILE and SSL_CERT_DIR name."""
    return ssl.create_default_context()


async def is_healthy(engine: httpx2.AsyncClient, path: str) -> bool:
    """Whether the engine's health page answers 200."""
    try:
        return (await engine.get(path)).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


async def lists(engine: httpx2.AsyncClient, name: str, path: str) -> bool:
    """Whether its `/v1/models` has this name and, where it says from where, these weights.

    An engine that does not answer this is given the benefit of the doubt: that it lives is for others to say.
    """
    try:
        reply = await engine.get("/v1/models", timeout=LISTING_TIMEOUT_S)
        listed = msgspec.json.decode(reply.content, type=_Listing).data
    except (httpx2.HTTPError, msgspec.DecodeError, UnicodeDecodeError):
        return True
    if reply.status_code != httpx2.codes.OK:
        return True
    own = [each for each in listed if each.id == name]
    return bool(own) and not any((each.root or "").startswith("/") and each.root != path for each in own)


async def complete(engine: httpx2.AsyncClient, model: str, max_tokens: int, timeout_s: float) -> Answer:
    """Asks the engine for a completion and reads it. Raises LlmgwError when there is none.

    Engines that have no chat are asked for a plain completion, then for an embedding. The text may be empty: a first
    token need not show.
    """
    attempts: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": max_tokens}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": max_tokens}),
        ("/v1/embeddings", {"input": PROMPT}),
    )
    problem, secret = "", engine.headers.get("authorization", "").removeprefix("Bearer ")
    timeout = httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    for path, body in attempts:
        started = time.perf_counter()
        try:
            reply = await engine.post(path, json={"model": model, **body}, timeout=timeout)
            if reply.status_code == httpx2.codes.OK:
                return _read(reply.content, time.perf_counter() - started)
        except httpx2.HTTPError as error:
            raise LlmgwError("no_answer", f"{path} gave no answer: {str(error) or type(error).__name__}") from error
        # Some quote the key that they refuse.
        said = reply.text.replace(secret, "…") if secret else reply.text
        problem = problem or f"{path} answered {reply.status_code}: {said[:200]}"
        # An engine without this endpoint says so; anything else is a failure of the model.
        if reply.status_code not in (400, 404, 405, 501):
            break
    raise LlmgwError("no_answer", problem)


def _read(body: bytes, seconds: float) -> Answer:
    """Raises LlmgwError for a reply that is no answer, whatever it is."""
    try:
        reply = msgspec.json.decode(body, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LlmgwError("no_answer", f"the reply is no completion: {error}") from error
    if reply.data:
        return Answer("an embedding", None)
    if not reply.choices:
        raise LlmgwError("no_answer", "the reply holds no completion")
    choice = reply.choices[0]
    message = choice.message or _Message()
    text = message.content or message.reasoning_content or choice.text or ""
    words = text if isinstance(text, str) else "".join(part.text for part in text)
    speed = reply.timings.predicted_per_second if reply.timings else None
    if speed is None and reply.usage and reply.usage.completion_tokens and seconds > 0:
        speed = reply.usage.completion_tokens / seconds
    return Answer(" ".join(words.split()), speed)
