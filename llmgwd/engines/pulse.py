"""Whether an engine still answers: a real request now and then, but not while it is seen to work anyway."""

import logging
from collections.abc import Callable

import anyio

from llmgwd.domain.errors import LlmgwError
from llmgwd.engines import probe
from llmgwd.engines.replica import Replica

log = logging.getLogger(__name__)

FAILURES = 2
"""Probes in a row without an answer that make a replica a hung one."""


async def until_hung(replica: Replica, heard_at: Callable[[str], float], *, at_once: bool) -> LlmgwError:
    """Returns why it is taken for hung, once it is. `at_once`: the first probe waits for nothing.

    `heard_at` gives when, on the loop's clock, the gateway last had an answer or a part of one from a replica. One that
    answers clients is not probed, and a probe that it has no room for while it does so is not held against it.
    """
    failures = 0
    async with probe.client(replica.address, replica.key) as engine:
        while True:
            since = anyio.current_time()
            engine_settings = replica.spec.engine
            if not at_once:
                await anyio.sleep(engine_settings.probe_every_s)
                if heard_at(replica.id) > since:
                    failures = 0
                    continue
            at_once = False
            try:
                await probe.complete(engine, replica.spec.served_name, 1, engine_settings.probe_timeout_s)
                failures = 0
            except LlmgwError as error:
                if heard_at(replica.id) > since:
                    failures = 0
                    continue
                failures += 1
                log.warning("replica did not answer a probe id=%s failures=%d why=%s", replica.id, failures, error)
                if failures >= FAILURES:
                    return LlmgwError("hung", f"the engine did not answer {failures} probes in a row: {error.message}")
