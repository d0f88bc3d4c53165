"""Load of streamed completions: many at once, each counted, timed and checked for its end."""

import asyncio
import contextlib
import json
import time
from typing import cast

from bench.gateway.link import MODEL
from bench.gateway.stream_backend import CHUNKS, GAP_S, MARK

STREAM_S = CHUNKS * GAP_S
STALL_S = 10 * GAP_S
_BODY = json.dumps(
    {"model": MODEL, "messages": [{"role": "user", "content": "Say something long, please."}], "stream": True}
)
_REQUEST = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_BODY)}\r\n\r\n{_BODY}"
).encode()
_LAST_STREAMS_S = 20.0
_LAG_LOOK_S = 0.005
_PAUSE_S = 0.2


class StreamLoad:
    """Keeps `streams` streams open, each followed by another, until told to finish.

    `fresh` opens a connection for every stream instead of keeping one per place.
    """

    def __init__(self, port: int, streams: int, *, fresh: bool = False) -> None:
        self.port = port
        self.fresh = fresh
        self.chunks = 0
        self.done = 0
        self.lost: list[str] = []
        """Why each stream that did not arrive whole did not."""
        self.stalled = 0
        """Streams that were silent for longer than STALL_S, before or after their first token."""
        self.longest_gap_s = 0.0
        self.first_token_s: list[float] = []
        self.unasked_usage = 0
        """Streams that held a usage chunk nobody asked for."""
        self.own_lag_s = 0.0
        """The longest time this very load was late in reading: a gap below it may be its own."""
        self.is_finishing = False
        self.running = 0
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._places: set[_Place] = set()

    async def ramp(self) -> None:
        """Opens the places evenly over the time of one stream, so that beginnings and ends never come in a crowd."""
        self._tasks.add(self._loop.create_task(self._watch_lag()))
        started = self._loop.time()
        for number in range(self._streams):
            self.open_place()
            await asyncio.sleep(started + STREAM_S * (number + 1) / self._streams - self._loop.time())

    def open_place(self) -> None:
        """Connects and begins a stream, unless the load is finishing."""
        if self.is_finishing:
            return
        self.running += 1
        task = self._loop.create_task(self._connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Begins no more streams and waits for those there are; what does not end in time counts as lost."""
        self.is_finishing = True
        if self.running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_STREAMS_S):
                    await self._all_ended.wait()
        self.lost += [f"not ended {_LAST_STREAMS_S:g} s after the rest"] * self.running
        self.drop()

    def drop(self) -> None:
        """Closes everything at once; streams under way are not counted."""
        self.is_finishing = True
        for task in self._tasks:
            task.cancel()
        for place in list(self._places):
            place.close()

    def stream_over(self, place: "_Place", why_lost: str | None) -> None:
        """A place's stream came to its end, or was lost."""
        if why_lost is None:
            self.done += 1
        else:
            self.lost.append(why_lost)
            place.close()
        if self.is_finishing:
            place.close()
            self._left()
        elif self.fresh or why_lost is not None:
            place.close()
            self._left()
            # A subject that refuses everything must not be asked in a tight loop.
            self._loop.call_later(0.0 if why_lost is None else _PAUSE_S, self.open_place)
        else:
            place.begin()

    def forget(self, place: "_Place") -> None:
        """The place's connection is gone."""
        self._places.discard(place)

    def _left(self) -> None:
        self.running -= 1
        if self.is_finishing and not self.running:
            self._all_ended.set()

    async def _connect(self) -> None:
        try:
            _, place = await self._loop.create_connection(lambda: _Place(self), "127.0.0.1", self.port)
        except OSError as error:
            self.lost.append(f"no connection: {error}")
            self._left()
            return
        self._places.add(place)

    async def _watch_lag(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LAG_LOOK_S)
            self.own_lag_s = max(self.own_lag_s, time.perf_counter() - before - _LAG_LOOK_S)


class _Place(asyncio.Protocol):
    """One connection and the stream on it."""

    def __init__(self, load: StreamLoad) -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._is_streaming = False
        self._heard = False
        self._has_stalled = False
        self._count = 0
        self._last_at = 0.0
        self._tail = b""

    def begin(self) -> None:
        assert self._transport is not None
        self._is_streaming = True
        self._heard = self._has_stalled = False
        self._count = 0
        self._tail = b""
        self._transport.write(_REQUEST)
        self._last_at = time.perf_counter()

    def close(self) -> None:
        self._is_streaming = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.begin()

    def data_received(self, data: bytes) -> None:
        if not self._is_streaming:
            return
        if not self._heard:
            self._heard = True
            if not data.startswith(b"HTTP/1.1 200"):
                self._over(f"answered {data[:80]!r}")
                return
        tokens = data.count(MARK)
        if tokens:
            self._take(tokens)
        if self._count >= CHUNKS:
            self._tail += data
            if self._tail.endswith(b"0\r\n\r\n"):
                self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._load.forget(self)
        if self._is_streaming:
            self._over(f"closed after {self._count} of {CHUNKS} chunks")

    def _take(self, tokens: int) -> None:
        now = time.perf_counter()
        load = self._load
        gap_s = now - self._last_at
        self._last_at = now
        if self._count == 0:
            load.first_token_s.append(gap_s)
        self._count += tokens
        load.chunks += tokens
        if gap_s > load.longest_gap_s:
            load.longest_gap_s = gap_s
        if gap_s > STALL_S and not self._has_stalled:
            self._has_stalled = True
            load.stalled += 1

    def _end(self) -> None:
        if b'"usage":{' in self._tail:
            self._load.unasked_usage += 1
        whole = self._count == CHUNKS and b"[DONE]" in self._tail
        self._over(None if whole else f"ended with {self._count} of {CHUNKS} chunks")

    def _over(self, why_lost: str | None) -> None:
        self._is_streaming = False
        self._load.stream_over(self, why_lost)
