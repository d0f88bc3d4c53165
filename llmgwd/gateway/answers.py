"""Answers the gateway gives itself: OpenAI-shaped errors, and refusals as an exception that carries one."""

from http import HTTPStatus

import msgspec

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}


class RefusedError(Exception):
    """A request the gateway answers with an error.

    `message` says what failed, why and what to do. `closes` when what follows on the connection cannot be trusted or
    is not worth reading. `falls_back` when the model could not answer, so that a fallback of it may.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: bytes = b"",
        closes: bool = False,
        falls_back: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers
        self.closes = closes
        self.falls_back = falls_back


ANY_ORIGIN = b"Access-Control-Allow-Origin: *\r\n"
"""A page that passed the preflight can read the list and the errors too."""


def reason_phrase(status: int) -> bytes:
    return _REASONS.get(status, b"")


def error_json(status: int, code: str, message: str, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def answer(
    status: int,
    body: bytes,
    *,
    headers: bytes = b"",
    close: bool = False,
    keep_alive_said: bool = False,
    without_body: bool = False,
) -> bytes:
    """A whole reply with a JSON body (none for 204). `headers` are whole lines; `without_body` is for HEAD."""
    described = b"" if status == 204 else b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    head = b"HTTP/1.1 %d %b\r\n%b%b%b%b\r\n" % (
        status,
        reason_phrase(status),
        described,
        ANY_ORIGIN,
        headers,
        connection_line(close, keep_alive_said),
    )
    return head if without_body else head + body


def connection_line(close: bool, keep_alive_said: bool) -> bytes:
    """The Connection header of a reply; `keep_alive_said` for HTTP/1.0 clients that asked to keep it."""
    if close:
        return b"Connection: close\r\n"
    return b"Connection: keep-alive\r\n" if keep_alive_said else b""
