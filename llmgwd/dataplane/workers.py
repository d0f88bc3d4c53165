"""The gateway's worker processes: started, replaced when they end, finished in order."""

import logging
import secrets
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.abc

from llmgwd import process
from llmgwd.config import GatewaySettings
from llmgwd.domain.errors import LlmgwError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0


class Workers:
    """Keeps `settings.workers` processes running on one address."""

    def __init__(self, settings: GatewaySettings, link: Path, logs: Path, env: Mapping[str, str]) -> None:
        """`env` is what every worker's environment has besides the daemon's own."""
        self._env = env
        self._settings = settings
        self._link = link
        self._log = logs / "gateway.log"
        self._running: dict[int, tuple[anyio.abc.Process, str | None]] = {}
        self._finishing = False

    def check_address(self) -> None:
        """Raises LlmgwError when something else listens there."""
        listen = self._settings.listen
        with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((listen.host, listen.port))
                probe.listen()
            except OSError as error:
                raise LlmgwError(
                    "gateway_address",
                    f"gateway.listen {listen} cannot be listened on: {error.strerror}",
                    hint="end what listens there, or give another address in the configuration",
                ) from error

    @property
    def pids(self) -> set[int]:
        return set(self._running)

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        for number in range(self._settings.workers):
            tasks.start_soon(self._keep, number)

    async def wait_ended(self, within_s: float) -> None:
        """Waits for workers that were told to finish; ends those that have not within `within_s`."""
        self._finishing = True
        with anyio.move_on_after(within_s):
            for worker, _ in list(self._running.values()):
                await worker.wait()
        for pid in list(self._running):
            await self.end(pid)

    async def end(self, pid: int) -> None:
        """Ends one worker; unless the gateway finishes, another takes its place."""
        if pid in self._running:
            await process.end(pid, self._running[pid][1], 2.0)

    async def _keep(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._finishing:
            started = anyio.current_time()
            try:
                why = f"status {await self._run(number)}"
            except OSError as error:
                why = str(error)
            if self._finishing:
                return
            log.error("gateway worker ended number=%d why=%s log=%s", number, why, self._log)
            pause_s = FIRST_PAUSE_S if anyio.current_time() - started > 60 else min(LONGEST_PAUSE_S, 2 * pause_s)
            await anyio.sleep(pause_s)

    async def _run(self, number: int) -> int:
        """Runs one worker to its end; its status."""
        # Cancelled in the middle, there would be a process that nobody knows.
        with anyio.CancelScope(shield=True):
            worker = await process.spawn(self._argv(number), self._log, self._env)
        self._running[worker.pid] = (worker, process.identity(worker.pid))
        try:
            return await worker.wait()
        finally:
            self._running.pop(worker.pid, None)

    def _argv(self, number: int) -> list[str]:
        argv = [sys.executable, "-m", "llmgwd.gateway.worker", "--link", str(self._link)]
        argv += ["--listen", str(self._settings.listen), "--worker-id", f"w{number}-{secrets.token_hex(4)}"]
        argv += ["--max-body", str(int(self._settings.max_body))]
        argv += ["--max-connections", str(self._settings.max_connections)]
        argv += ["--max-in-flight", str(self._settings.max_in_flight), "--queue", str(self._settings.queue)]
        return argv if self._settings.workers == 1 else [*argv, "--reuse-port"]
