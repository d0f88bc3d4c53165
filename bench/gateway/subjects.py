"""What is measured: no proxy, nginx, two routers in Rust, a proxy in Python, and llmgw; each started the same way."""

import http.client
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.backends import proxy_argv
from bench.gateway.environments import ensure_peer, nginx_version, peer_version
from bench.gateway.link import MODEL, StandIn
from bench.gateway.processes import ProcessGroup, StartError, free_port

_ANSWER_TIMEOUT_S = 120.0
_MAX_IN_FLIGHT = 10_000
_LITELLM_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


@dataclass(frozen=True)
class Running:
    """A subject that serves on `port` of 127.0.0.1. `group` is None without a proxy, `link` is llmgw's."""

    port: int
    group: ProcessGroup | None = None
    link: StandIn | None = None

    def end(self) -> None:
        if self.group is not None:
            self.group.end()
        if self.link is not None:
            self.link.close()


@dataclass(frozen=True)
class Subject:
    """`start(upstream, folder)` begins it in front of a port; `prepare` installs it and gives its version."""

    name: str
    start: Callable[[int, Path], Running]
    prepare: Callable[[], str]
    is_slow: bool = False
    """Whether it gets a small part of the load: see `figures.SLOW_PART`."""
    carries_streams: bool = True


def start_ready(subject: Subject, upstream: int, folder: Path) -> Running:
    """Starts a subject and returns once it has answered a request. Raises StartError."""
    folder.mkdir(parents=True, exist_ok=True)
    running = subject.start(upstream, folder)
    try:
        if running.group is not None:
            running.group.await_port(running.port)
        _await_answer(subject.name, running)
    except BaseException:
        running.end()
        raise
    return running


def every_subject(policy: str, workers: int) -> list[Subject]:
    """In the order of the table. `policy` is the routers' own load balancing, `workers` those of the wide llmgw."""
    subjects = [
        Subject("direct", lambda upstream, _: Running(upstream), lambda: ""),
        Subject("nginx", _start_nginx, nginx_version),
        _peer("vllm-router", _router([], policy)),
        _peer("sglang-router", _router(["launch"], policy)),
        _peer("litellm", _litellm_argv, is_slow=True),
        Subject("llmgw", _llmgw(1), lambda: "1 worker"),
    ]
    if workers > 1:
        wide = Subject(f"llmgw x{workers}", _llmgw(workers), lambda: f"{workers} workers", carries_streams=False)
        subjects.append(wide)
    return subjects


def _peer(name: str, argv: Callable[[int, int, Path], list[str]], *, is_slow: bool = False) -> Subject:
    def start(upstream: int, folder: Path) -> Running:
        port = free_port()
        group = ProcessGroup(folder / "log")
        # Nothing here may ask the network for price lists or report usage.
        group.start([str(ensure_peer(name)), *argv(port, upstream, folder)], {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        return Running(port, group)

    def prepare() -> str:
        ensure_peer(name)
        return peer_version(name)

    return Subject(name, start, prepare, is_slow)


def _router(command: list[str], policy: str) -> Callable[[int, int, Path], list[str]]:
    """vllm-router and sglang-router are of one family and take the same options."""

    def argv(port: int, upstream: int, folder: Path) -> list[str]:
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{upstream}"]
        arguments += ["--policy", policy, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        return [*command, *arguments]

    return argv


def _litellm_argv(port: int, upstream: int, folder: Path) -> list[str]:
    config = folder / "litellm.yaml"
    config.write_text(_LITELLM_CONFIG.format(model=MODEL, upstream=upstream))
    return ["--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]


def _start_nginx(upstream: int, folder: Path) -> Running:
    port = free_port()
    group = ProcessGroup(folder / "log")
    group.start(proxy_argv(folder.resolve(), port, upstream))
    return Running(port, group)


def _llmgw(workers: int) -> Callable[[int, Path], Running]:
    """The gateway's workers with the arguments the daemon gives them."""

    def start(upstream: int, folder: Path) -> Running:
        port = free_port()
        group = ProcessGroup(folder / "log")
        link = StandIn(folder / "link.sock", upstream)
        for number in range(workers):
            argv = [sys.executable, "-m", "llmgwd.gateway.worker", "--link", str(link.path)]
            argv += ["--listen", f"127.0.0.1:{port}", "--worker-id", f"w{number}-bench"]
            # The one replica here stands for as many as a crowd of streams would have.
            argv += ["--max-in-flight", str(_MAX_IN_FLIGHT)]
            group.start(argv if workers == 1 else [*argv, "--reuse-port"])
        running = Running(port, group, link)
        try:
            link.await_applied(workers)
        except TimeoutError as error:
            running.end()
            raise StartError(f"{error}; log:\n{group.log_tail()}") from error
        return running

    return start


def _await_answer(name: str, running: Running) -> None:
    """Asks for a completion until it comes. Raises StartError."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Say something."}]})
    end = time.monotonic() + _ANSWER_TIMEOUT_S
    why = ""
    while time.monotonic() < end:
        if running.group is not None:
            running.group.check_running()
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
            if reply.status == 200 and b'"choices"' in text:
                return
            why = f"status {reply.status}: {text[:200]!r}"
        except (OSError, http.client.HTTPException) as error:
            why = str(error)
        finally:
            connection.close()
        time.sleep(0.2)
    raise StartError(f"{name} does not answer: {why}")
