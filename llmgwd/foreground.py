"""`llmgwd` in the foreground: its options, its signals, and what it says when it cannot start."""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import anyio

from llmgwd.config import read_settings
from llmgwd.daemon import Daemon
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.placement import MachineReader
from llmgwd.jobs.runner import Runner
from llmgwd.protocol.socket_path import SocketPathError, control_socket, state_folder

log = logging.getLogger("llmgwd")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmgwd", description="Serves your LLMs and moves them to newer weights.")
    parser.add_argument("--config", type=Path, help="server.yaml; without it every setting has its default")
    parser.add_argument("--socket", type=Path, help="control socket; see docs/configuration.md for the default")
    parser.add_argument(
        "--leave-running",
        action="store_true",
        help="on SIGTERM end the daemon alone; gateway and replicas serve on, and the next start goes on with them",
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--version", action="version", version=f"llmgwd {version('llmgw')}")
    return parser.parse_args(argv)


def run(argv: Sequence[str] | None = None, runner: type[Runner] = Runner, machine: MachineReader | None = None) -> int:
    """The console script: 0 after a stop that was asked for, 1 when it could not start or go on, 2 for bad settings."""
    options = parse(argv)
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        settings = read_settings(options.config)
        path = control_socket(options.socket, os.environ)
        state = state_folder(os.environ)
        others = {"leaves_running": options.leave_running, "runner": runner, "machine": machine}
        anyio.run(_serve, partial(Daemon, settings, options.config, path, state, **others))
    except SocketPathError as error:
        return _fail(str(error), "", 2)
    except LlmgwError as error:
        return _fail(error.message, error.hint, int(error.status))
    except ExceptionGroup as group:
        told, rest = group.split((LlmgwError, SocketPathError))
        if rest is not None or told is None:
            raise
        first = _first(told)
        if isinstance(first, LlmgwError):
            return _fail(first.message, first.hint, int(first.status))
        return _fail(str(first), "", 2)
    return 0


async def _serve(make: Callable[[], Daemon]) -> None:
    daemon = make()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        # Blocked by the console script until there is somebody to take it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_start, daemon)
                async for number in signals:
                    if number != signal.SIGHUP:
                        break
                    tasks.start_soon(daemon.reload)
                if daemon.leaves_running and number == signal.SIGTERM:
                    log.info("leaving: gateway and replicas serve on; SIGINT would end them too")
                    await daemon.leave()
                else:
                    log.info("stopping: draining requests, then ending every process signal=%s", number.name)
                    await daemon.stop()
                tasks.cancel_scope.cancel()
        finally:
            # Also when something failed that nobody foresaw: no process may outlive its daemon, unless it is meant to.
            # Within the receiver: a second signal must not end the daemon before that.
            with anyio.CancelScope(shield=True):
                await daemon.end_rest()


async def _start(daemon: Daemon) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(daemon.run)
        log.info("llmgwd is ready %s", daemon.where)
        _tell_service_manager()


def _tell_service_manager() -> None:
    """Says to systemd, if that started us, that the service is up (sd_notify)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(b"READY=1", path.replace("@", "\0", 1) if path.startswith("@") else path)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _fail(message: str, hint: str, status: int) -> int:
    print(f"llmgwd: {message}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)  # noqa: T201
    return status
