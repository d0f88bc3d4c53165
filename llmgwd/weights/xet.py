"""Files from the hub's xet storage, in order and from any byte on.

The client's own `xet_get` writes the pieces of a file in the order in which they come, so that they can neither be
hashed while they come nor be gone on from after a kill. Its library, with the client's session and routes, also gives
them as an ordered stream from an offset.
"""

import queue
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import httpx2
from huggingface_hub import get_session, hf_raise_for_status
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but loaded lazily
    XetFileData,
    parse_xet_file_data_from_response,
)
from huggingface_hub.utils._runtime import is_xet_available
from huggingface_hub.utils._xet import (
    XetConnectionInfo,
    get_xet_session,
    parse_xet_connection_info_from_headers,
    xet_headers_without_auth,
)

from llmgwd.domain.files import RepoFile
from llmgwd.weights.progress import LOOK_EVERY_S, in_background
from llmgwd.weights.troubles import UnexpectedAnswerError, XetError, host_of

TOKEN_TIMEOUT_S = 15.0
STALL_S = 60.0
PIECES_AHEAD = 2
END = b""


def offered(answers: Iterable[httpx2.Response], endpoint: str) -> XetFileData | None:
    """Where the hub says that the file is in xet storage, unless it is a way that would take the token elsewhere."""
    if not is_xet_available():
        return None
    hub = _origin(endpoint)
    for answer in answers:
        found: XetFileData | None = parse_xet_file_data_from_response(answer, endpoint=endpoint)
        if found is not None and _origin(found.refresh_route) == hub:
            return found
    return None


def _origin(address: str) -> tuple[str, str, int | None]:
    """The scheme counts: the same host over plain http would get the token where others can read it."""
    url = httpx2.URL(address)
    return url.scheme, url.host, url.port


class XetBody:
    """A file from offset on. Raises XetError, or what a request to the hub raises."""

    def __init__(self, file: RepoFile, found: XetFileData, headers: dict[str, str], offset: int) -> None:
        answer = get_session().get(found.refresh_route, headers=headers, timeout=TOKEN_TIMEOUT_S)
        hf_raise_for_status(answer)
        access = parse_xet_connection_info_from_headers(answer.headers)
        if access is None:
            raise UnexpectedAnswerError("it offers xet storage and gives no access to it")
        self.host = host_of(access.endpoint)
        self.start: int | None = offset
        self._missing = file.size_bytes - offset
        self._open = partial(_stream, file, found, access, headers, offset)
        self._pieces: queue.Queue[bytes | Exception] = queue.Queue(PIECES_AHEAD)
        self._left = threading.Event()

    def chunks(self) -> Iterator[bytes]:
        # Its library goes on trying for many minutes and cannot be interrupted: it gets a thread that can be left.
        in_background(self._pump)
        try:
            while piece := self._next():
                self._missing -= len(piece)
                yield piece
        finally:
            self._left.set()
        if self._missing:  # what it does not have ends without an error
            raise XetError(f"it ended {self._missing} bytes short", self.host)

    def interrupt(self) -> None:
        self._left.set()
        with suppress(queue.Full):  # then nobody waits for a piece
            self._pieces.put_nowait(END)

    def _next(self) -> bytes:
        try:
            piece = self._pieces.get(timeout=STALL_S)
        except queue.Empty:
            raise XetError(f"nothing came for {STALL_S:g} s", self.host) from None
        if isinstance(piece, Exception):
            raise _wrapped(piece, self.host) from piece
        return piece

    def _pump(self) -> None:
        try:
            for piece in self._open():
                if not self._put(piece):
                    return
            self._put(END)
        except Exception as error:  # noqa: BLE001 - its library raises many kinds
            self._put(error)

    def _put(self, piece: bytes | Exception) -> bool:
        while not self._left.is_set():
            with suppress(queue.Full):
                self._pieces.put(piece, timeout=LOOK_EVERY_S)
                return True
        return False


def _stream(
    file: RepoFile, found: XetFileData, access: XetConnectionInfo, headers: dict[str, str], offset: int
) -> Iterator[bytes]:
    from hf_xet import XetFileInfo  # type: ignore[import-untyped]  # a large library, and few hubs offer xet

    session = get_xet_session()  # type: ignore[no-untyped-call]
    group = session.new_download_stream_group(
        endpoint=access.endpoint,
        token=access.access_token,
        token_expiry_unix_secs=access.expiration_unix_epoch,
        token_refresh_url=found.refresh_route,
        token_refresh_headers=headers,
        custom_headers=xet_headers_without_auth(headers),
    )
    yield from group.download_stream(XetFileInfo(found.file_hash, file.size_bytes), offset, None)


def _wrapped(error: Exception, host: str) -> XetError:
    """Its library raises many kinds, OSErrors that are no trouble of this disk among them; addresses may be signed."""
    return XetError(re.sub(r"\?\S+", "?…", str(error))[:300] or type(error).__name__, host)
