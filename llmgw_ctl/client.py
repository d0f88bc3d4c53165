"""A blocking connection to the daemon's control socket: hello, one request after another, streams of updates."""

import contextlib
import errno
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from llmgw_ctl.failures import CommandError, DaemonGoneError
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.framing import FrameError, FrameReader, frame
from llmgwd.protocol.messages import (
    PROTOCOL_VERSION,
    Canaries,
    CanaryChanged,
    Done,
    Failure,
    Hello,
    JobChanged,
    Jobs,
    ListUpdates,
    Reply,
    Request,
    Started,
    UpdateChecked,
    Updates,
    Verified,
    VerifyProgress,
    VerifyWeights,
    WatchCanary,
    WatchJob,
)
from llmgwd.protocol.views import CanaryView, JobView, UpdateView

HELLO_S = 5.0
LISTING_S = 30.0
# A verb answers when it has taken effect; an abort drains the canary first, for as long as the daemon is told to.
VERB_S = 900.0
# The hub is asked for each model, and the daemon gives each a minute.
UPDATE_S = 90.0
READ_BYTES = 64 * 1024

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Connection:
    """One conversation with the daemon, hello already said. Failures come as CommandError with the daemon's words."""

    def __init__(self, connected: socket.socket, path: Path) -> None:
        self._socket = connected
        self._path = path
        self._reader = FrameReader()
        self._frames: deque[bytes] = deque()
        self._decoder = msgspec.msgpack.Decoder(Reply)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def greet(self, timeout_s: float) -> None:
        """Exchanges hellos. Raises CommandError when the daemon speaks another version."""
        self._send(Hello("llmgw"))
        theirs = self._expect(Hello, timeout_s)
        if theirs.version != PROTOCOL_VERSION:
            raise CommandError(
                f"{theirs.program} on {self._path} speaks version {theirs.version} of the control protocol, "
                f"this llmgw version {PROTOCOL_VERSION}",
                "use the llmgw of the release that llmgwd runs",
            )

    def ask(self, request: Request, answer: type[Answer], timeout_s: float = LISTING_S) -> Answer:
        self._send(request)
        return self._expect(answer, timeout_s)

    def act(self, request: Request) -> Started | Done:
        """Asks for a verb that starts a job, or finds nothing to do."""
        self._send(request)
        reply = self._receive(VERB_S)
        if isinstance(reply, Started | Done):
            return reply
        raise _unexpected(reply, Started)

    def verb(self, request: Request) -> Done:
        """Asks for a verb that answers when it has taken effect."""
        return self.ask(request, Done, VERB_S)

    def watch_job(self, job_id: str) -> Iterator[JobView]:
        """The job now and at each change; the last one has ended."""
        self._send(WatchJob(job_id))
        while isinstance(reply := self._receive(None), JobChanged):
            yield reply.job
        if not isinstance(reply, Jobs) or len(reply.jobs) != 1:
            raise _unexpected(reply, Jobs)
        yield reply.jobs[0]

    def watch_canary(self, canary_id: str) -> Iterator[CanaryView]:
        """The canary now and at each change; the last one has ended."""
        self._send(WatchCanary(canary_id))
        while isinstance(reply := self._receive(None), CanaryChanged):
            yield reply.canary
        if not isinstance(reply, Canaries) or len(reply.canaries) != 1:
            raise _unexpected(reply, Canaries)
        yield reply.canaries[0]

    def updates(self, name: str | None) -> Iterator[UpdateView | Updates]:
        """What is newer for each model as it is known, then all of them."""
        self._send(ListUpdates(name, follow=True))
        while isinstance(reply := self._receive(UPDATE_S), UpdateChecked):
            yield reply.update
        if not isinstance(reply, Updates):
            raise _unexpected(reply, Updates)
        yield reply

    def verify_weights(self, of: str | None, *, repair: bool) -> Iterator[VerifyProgress | Verified]:
        """How far it is, then what was found."""
        self._send(VerifyWeights(of, repair))
        while isinstance(reply := self._receive(UPDATE_S), VerifyProgress):
            yield reply
        if not isinstance(reply, Verified):
            raise _unexpected(reply, Verified)
        yield reply

    def _send(self, message: Request | Hello) -> None:
        try:
            self._socket.sendall(frame(msgspec.msgpack.encode(message)))
        except (BrokenPipeError, ConnectionResetError) as error:
            # What the daemon said before it closed, that a caller is not permitted, may still be there to read.
            with contextlib.suppress(OSError):
                self._receive(HELLO_S)
            raise DaemonGoneError(f"llmgwd on {self._path} closed the connection") from error

    def _expect(self, answer: type[Answer], timeout_s: float) -> Answer:
        reply = self._receive(timeout_s)
        if not isinstance(reply, answer):
            raise _unexpected(reply, answer)
        return reply

    def _receive(self, timeout_s: float | None) -> Reply:
        """The next message. Raises CommandError for a Failure, DaemonGoneError when the daemon is no longer there."""
        self._socket.settimeout(timeout_s)
        while not self._frames:
            self._frames.extend(self._read(timeout_s))
        try:
            reply: Reply = self._decoder.decode(self._frames.popleft())
        except msgspec.DecodeError as error:
            raise CommandError(
                f"llmgwd on {self._path} said something this llmgw does not know: {error}",
                "use the llmgw of the release that llmgwd runs",
            ) from error
        if isinstance(reply, Failure):
            raise CommandError(reply.message, reply.hint, reply.status, reply.code)
        return reply

    def _read(self, timeout_s: float | None) -> list[bytes]:
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError as error:
            raise CommandError(
                f"llmgwd on {self._path} has not answered within {timeout_s:g} s",
                "look at its log; what was asked for may still take effect, see `llmgw ctl events`",
            ) from error
        except ConnectionResetError:
            data = b""
        if not data:
            raise DaemonGoneError(
                f"llmgwd on {self._path} went away before it had answered",
                "start it again with `llmgwd --config server.yaml`; a job that was under way goes on then",
            )
        try:
            return self._reader.feed(data)
        except FrameError as error:
            raise CommandError(f"what listens on {self._path} does not speak llmgw's protocol: {error}") from error


def connect(path: Path, timeout_s: float = HELLO_S) -> Connection:
    """A connection to the daemon that listens on the path, within timeout_s seconds for each of connect and hello."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout_s)
    try:
        connected.connect(str(path))
        connection = Connection(connected, path)
        connection.greet(timeout_s)
    except OSError as error:
        connected.close()
        raise _no_connection(path, error) from error
    except BaseException:
        connected.close()
        raise
    return connection


def _no_connection(path: Path, error: OSError) -> CommandError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return CommandError(
            f"not permitted to use the socket {path}",
            "run llmgw as the user of llmgwd, or join the group that the socket belongs to",
            ExitStatus.NOT_PERMITTED,
        )
    why = {
        errno.ENOENT: "there is no such socket",
        errno.ECONNREFUSED: "nobody listens there",
    }.get(error.errno or 0, error.strerror or str(error) or "no answer in time")
    return DaemonGoneError(
        f"no llmgwd on {path}: {why}",
        "start it with `llmgwd --config server.yaml`, or name its socket with --socket or LLMGW_SOCKET",
    )


def _unexpected(reply: object, wanted: type[msgspec.Struct]) -> CommandError:
    return CommandError(
        f"llmgwd answered {type(reply).__name__} where {wanted.__name__} was expected",
        "use the llmgw of the release that llmgwd runs",
    )
