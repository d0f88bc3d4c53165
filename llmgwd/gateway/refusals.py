"""What a client is told whose connection is closed over how it sends, not over what it asks."""

from llmgwd.gateway.answers import RefusedError


def head_too_large(limit: int) -> RefusedError:
    return RefusedError(
        431, "head_too_large", f"the request head is over {limit} bytes; send fewer or shorter headers", closes=True
    )


def too_much_ahead(limit: int) -> RefusedError:
    return RefusedError(
        413,
        "too_much_ahead",
        f"more than {limit} bytes were sent behind a request before its answer; wait for answers, or connect again",
        closes=True,
    )


def too_many_connections(limit: int) -> RefusedError:
    return RefusedError(
        503,
        "too_many_connections",
        f"this gateway worker has {limit} connections, as many as gateway.max_connections allows; try again shortly",
        headers=b"Retry-After: 1\r\n",
        closes=True,
    )


def too_slow(what: str) -> RefusedError:
    return RefusedError(
        408, "request_timeout", f"the request's {what} did not arrive in time; send it again", closes=True
    )
