"""The admin port: whether the house is well, all of it as JSON, and what Prometheus reads."""

import contextlib
import socket
from collections.abc import Callable, Iterator

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgwd.config import Address
from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol.views import StatusView


def admin_app(status: Callable[[], StatusView], page: Callable[[str], tuple[bytes, str]]) -> Starlette:
    """`/health` answers 200 while a gateway worker is connected, else 503; `/status` is the house as JSON.

    `/metrics` is `page`, which is given the Accept header and gives content and its type.
    """

    async def health(request: Request) -> Response:
        well = status().workers > 0
        return Response("ok\n" if well else "no gateway worker\n", status_code=200 if well else 503)

    async def show(request: Request) -> Response:
        return Response(msgspec.json.encode(status()), media_type="application/json")

    async def metrics(request: Request) -> Response:
        content, media_type = page(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": media_type})

    return Starlette(routes=[Route("/health", health), Route("/status", show), Route("/metrics", metrics)])


class _Server(uvicorn.Server):
    """Leaves the process's signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(listen: Address) -> socket.socket:
    """A listening socket. Raises LlmgwError when the address cannot be had."""
    opened = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((listen.host, listen.port))
        opened.listen()
    except OSError as error:
        opened.close()
        raise LlmgwError(
            "admin_address",
            f"admin.listen {listen} cannot be listened on: {error.strerror}",
            hint="end what listens there, or give another address in the configuration",
        ) from error
    return opened


async def serve_admin(opened: socket.socket, app: Starlette) -> None:
    """Serves until cancelled."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    await _Server(config).serve(sockets=[opened])
