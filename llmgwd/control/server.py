"""The control socket: one task a caller, one request after another, each answered or refused in words."""

import contextlib
import logging
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from llmgwd.control.answers import Answers
from llmgwd.control.peer import caller
from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol import messages as m
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.framing import FrameError, FrameReader, frame

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 1 << 20
HELLO_WITHIN_S = 10.0
SEND_WITHIN_S = 30.0

_decode_hello = msgspec.msgpack.Decoder(m.Hello).decode
_decode = msgspec.msgpack.Decoder(m.Request).decode
_encode = msgspec.msgpack.encode


class ControlServer:
    """Owns the control socket at `path`."""

    def __init__(self, path: Path, answers: Answers, program: str) -> None:
        self._path = path
        self._answers = answers
        self._program = program
        self._listener: anyio.abc.Listener[anyio.abc.SocketStream] | None = None
        self._scope = anyio.CancelScope()
        self._opened = anyio.Event()

    async def listen(self) -> None:
        """Takes the socket, replacing a stale one; callers wait until `open`.

        Raises LlmgwError when another daemon has it, or it cannot be had.
        """
        clear(self._path)
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._listener = await anyio.create_unix_listener(self._path, mode=0o660)
        except OSError as error:
            raise LlmgwError(
                "bad_socket",
                f"the control socket {self._path} cannot be made: {error.strerror}",
                hint="give another place with --socket or LLMGW_SOCKET",
            ) from error

    async def serve(self) -> None:
        """Answers callers from `open` until `close`; then nobody finds the socket any more."""
        assert self._listener is not None
        try:
            with self._scope:
                async with self._listener:
                    await self._opened.wait()
                    await self._listener.serve(self._talk)
        finally:
            self._path.unlink(missing_ok=True)

    def open(self) -> None:
        """There is something to be asked now."""
        self._opened.set()

    def close(self) -> None:
        """Ends every conversation."""
        self._scope.cancel()

    async def _talk(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                with contextlib.suppress(_GoneError):
                    await self._hold(stream)
            except Exception:
                log.exception("a conversation failed unexpectedly")

    async def _hold(self, stream: anyio.abc.SocketStream) -> None:
        try:
            await self._converse(stream)
        except (FrameError, msgspec.DecodeError) as error:
            await _send(stream, m.Failure("bad_frame", str(error), status=ExitStatus.USAGE))

    async def _converse(self, stream: anyio.abc.SocketStream) -> None:
        by = caller(stream.extra(anyio.abc.SocketAttribute.raw_socket))  # noqa: S610 - anyio's typed attributes
        frames = _frames(stream)
        await _send(stream, m.Hello(self._program))
        first = None
        with anyio.move_on_after(HELLO_WITHIN_S):
            first = await anext(frames, None)
        if first is None:
            return
        hello = _decode_hello(first)
        if hello.version != m.PROTOCOL_VERSION:
            raise FrameError(f"{hello.program} speaks version {hello.version}, this daemon {m.PROTOCOL_VERSION}")
        async for payload in frames:
            await self._reply(stream, payload, by)

    async def _reply(self, stream: anyio.abc.SocketStream, payload: bytes, by: str) -> None:
        try:
            request = _decode(payload)
        except msgspec.ValidationError as error:
            await _send(
                stream,
                m.Failure(
                    "unknown_request",
                    f"this daemon does not understand the request: {error}",
                    hint="are llmgw and llmgwd of the same version?",
                    status=ExitStatus.USAGE,
                ),
            )
            return
        try:
            if isinstance(request, m.WatchJob | m.WatchCanary | m.VerifyWeights) or (
                isinstance(request, m.ListUpdates) and request.follow
            ):
                # Closed here whatever comes: what it has started must end in this task.
                async with contextlib.aclosing(self._answers.follow(request)) as updates:
                    async for update in updates:
                        await _send(stream, update)
            else:
                await _send(stream, await self._answers.answer(request, by))
        except LlmgwError as error:
            await _send(stream, m.Failure(error.code, error.message, error.hint, error.status))
        except _GoneError:
            raise
        except Exception as error:
            log.exception("request failed unexpectedly kind=%s", type(request).__name__)
            await _send(stream, m.Failure("unexpected", f"{type(error).__name__}: {error}", "see the daemon's log"))


class _GoneError(Exception):
    """The caller is not there any more, or takes nothing."""


async def _frames(stream: anyio.abc.SocketStream) -> AsyncIterator[bytes]:
    """Raises _GoneError when the connection breaks."""
    reader = FrameReader(MAX_REQUEST_BYTES)
    try:
        async for data in stream:
            for payload in reader.feed(data):
                yield payload
    except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        raise _GoneError from error


async def _send(stream: anyio.abc.SocketStream, message: msgspec.Struct) -> None:
    """Raises _GoneError when it does not arrive."""
    try:
        with anyio.fail_after(SEND_WITHIN_S):
            await stream.send(frame(_encode(message)))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError) as error:
        raise _GoneError from error


def clear(path: Path) -> None:
    """Takes away a socket file on which nobody listens. Raises LlmgwError when somebody does, or it is no socket."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise LlmgwError("bad_socket", f"{path} is in the way: it is no socket", hint="give another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            log.info("replacing a stale socket path=%s", path)
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise LlmgwError("bad_socket", f"{path} cannot be listened on: {error.strerror}") from error
    raise LlmgwError(
        "daemon_running",
        f"another llmgwd listens on {path}",
        hint="stop it first, or start this one with another LLMGW_SOCKET and LLMGW_STATE_DIR",
    )
