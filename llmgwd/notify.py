"""Notifications: events posted to webhooks, without ever holding up what they tell of."""

import logging
from collections.abc import Callable

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from llmgwd.config import WebhookSettings
from llmgwd.protocol.views import EventView

log = logging.getLogger(__name__)

QUEUED_AT_MOST = 1000
TRIES = 4
FIRST_PAUSE_S = 1.0
TIMEOUT_S = 10.0


class Notifier:
    """Takes events at once and posts them in order, in its own task. `sinks` gives the present settings."""

    def __init__(self, sinks: Callable[[], tuple[WebhookSettings, ...]]) -> None:
        self._sinks = sinks
        self._send: MemoryObjectSendStream[EventView]
        self._receive: MemoryObjectReceiveStream[EventView]
        self._send, self._receive = anyio.create_memory_object_stream(QUEUED_AT_MOST)

    def take(self, event: EventView) -> None:
        """Queues an event; one too many is dropped and logged."""
        if not self._sinks():
            return
        try:
            self._send.send_nowait(event)
        except anyio.WouldBlock:
            log.error("notification dropped what=%s model=%s queued=%d", event.what, event.model, QUEUED_AT_MOST)

    async def deliver(self) -> None:
        """Posts what was taken, until cancelled."""
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
            async for event in self._receive:
                for sink in self._sinks():
                    if not sink.events or event.what in sink.events:
                        await _post(client, sink.url, event)


async def _post(client: httpx2.AsyncClient, url: str, event: EventView) -> None:
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            await anyio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        try:
            reply = await client.post(
                url, content=msgspec.json.encode(event), headers={"content-type": "application/json"}
            )
            if reply.is_success:
                return
            problem = f"status {reply.status_code}"
        except httpx2.HTTPError as error:
            problem = str(error) or type(error).__name__
    log.error("notification not delivered what=%s model=%s tries=%d why=%s", event.what, event.model, TRIES, problem)
