"""A whole llmgw for a test: the real daemon as a process, on fresh ports and folders, and its command line."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from llmgw_ctl.client import connect
from llmgw_ctl.failures import CommandError
from llmgwd import process
from llmgwd.protocol import messages as m
from tests.support.local_hub import LocalHub
from tests.support.toy_engine import ADAPTERS, ARGV, Behaviour

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_port() -> int:
    """A port that nobody listens on now, below those that outgoing connections and replicas take."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(look: Callable[[], Any], within_s: float = 30.0, what: str = "") -> Any:
    """The first true value that `look` gives. Raises AssertionError after `within_s`."""
    end = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end, f"not within {within_s:g} s: {what or look}"
        time.sleep(0.02)  # polling another process: nothing signals its change
    return found


class House:
    """One daemon on `root`, which may be stopped and started again on the same state."""

    def __init__(self, root: Path, hub: LocalHub, settings: dict[str, Any] | None = None) -> None:
        self.root = root
        self.hub = hub
        self.gateway_port, self.admin_port = free_port(), free_port()
        self.state = root / "state"
        self.socket = root / "ctl.sock"
        self.config = root / "server.yaml"
        self.log = root / "llmgwd.log"
        self.log.touch()
        self.options: list[str] = []
        """Of `llmgwd`, besides its configuration."""
        self.process: subprocess.Popen[bytes] | None = None
        self.program: list[str | Path] = [BIN / "llmgwd"]
        self.own_env: dict[str, str] = {}
        self.settings: dict[str, Any] = {
            "gateway": {"listen": f"127.0.0.1:{self.gateway_port}", "drain": "5s"},
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "hub": {"endpoint": hub.endpoint},
            "weights": {"min_free": "1MiB"},
            "canary": {"every": "200ms"},
            "engines": {"toy": {"argv": ARGV, "ready_timeout": "20s", "adapters": ADAPTERS}},
            **(settings or {}),
        }

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def env(self) -> dict[str, str]:
        own = {"LLMGW_STATE_DIR": str(self.state), "LLMGW_SOCKET": str(self.socket), "PYTHONPATH": str(PROJECT)}
        return {**os.environ, **own, "NO_COLOR": "1", **self.own_env}

    def start(self) -> None:
        """Starts the daemon and waits until its control socket answers."""
        self.launch()
        wait_until(self._answers, what="the daemon answers; its log:\n" + self.log.read_text())

    def launch(self) -> None:
        """Starts the daemon, whatever comes of it."""
        self.write_settings(self.settings)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, "--config", self.config, *self.options],
                env=self.env,
                stdout=log,
                stderr=log,
                cwd=self.root,
            )

    def write_settings(self, settings: dict[str, Any]) -> None:
        self.config.write_text(yaml.safe_dump(settings))

    def reload(self, settings: dict[str, Any] | None = None) -> None:
        """Asks the daemon to read these settings, or those it has, again; whoever calls waits for what comes of it."""
        self.write_settings(self.settings if settings is None else settings)
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.stop(how)
        self.start()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            with connect(self.socket) as connection:
                return isinstance(connection.ask(m.GetStatus(), m.Status), m.Status)
        except CommandError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the daemon a signal and waits for its end; its status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process = None
        return status

    def ctl(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs `llmgw ctl …` to its end."""
        return subprocess.run(
            [BIN / "llmgw", "ctl", *words],
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts `llmgw ctl …`, which says nothing; the caller waits for its end."""
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [BIN / "llmgw", "ctl", *words], env=self.env, cwd=self.root, stdin=quiet, stdout=quiet, stderr=quiet
        )

    def in_flight(self, model: str, arm: str) -> int:
        """How many requests the gateway says are at an engine of this arm now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=5) as reply:
            page = reply.read().decode()
        lines = [line for line in page.splitlines() if line.startswith("llmgw_requests_in_flight{")]
        here = [line for line in lines if f'arm="{arm}"' in line and f'model="{model}"' in line]
        return sum(int(float(line.split()[-1])) for line in here)

    def ok(self, *words: str, timeout_s: float = 60) -> str:
        """Its standard output; the command must exit with 0."""
        done = self.ctl(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"llmgw ctl {' '.join(words)}\n{done.stdout}{done.stderr}\n{self.log.read_text()}"
        return done.stdout

    def json(self, *words: str, timeout_s: float = 60) -> Any:
        return json.loads(self.ok(*words, "--json", timeout_s=timeout_s))

    def model(self, name: str = "chat") -> dict[str, Any]:
        """`ctl model show`, as JSON."""
        shown: dict[str, Any] = self.json("model", "show", name)
        return shown

    def canary(self, name: str = "chat") -> dict[str, Any] | None:
        """The model's running canary, as JSON."""
        found: list[dict[str, Any]] = self.json("model", "canaries", name)
        return found[0] if found else None

    def ask(
        self, model: str = "chat", headers: dict[str, str] | None = None, **body: Any
    ) -> tuple[str, dict[str, Any]]:
        """Sends one chat completion through the gateway: the arm that answered, and the reply."""
        data = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **body}).encode()
        request = urllib.request.Request(
            f"{self.gateway}/v1/chat/completions", data, {"content-type": "application/json", **(headers or {})}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.headers["x-llmgw-arm"], json.load(reply)

    @contextmanager
    def stream(self, model: str = "chat") -> Iterator[Iterator[bytes]]:
        """One streamed chat completion through the gateway, as its lines."""
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        request = urllib.request.Request(
            f"{self.gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            yield iter(reply)

    def engine_pids(self) -> set[int]:
        """Processes of the toy engine that run from this house's folders."""
        found = set()
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:
                continue
            if b"tests.support.toy_engine" in line and str(self.root).encode() in line:
                found.add(int(entry.parent.name))
        return found


@contextmanager
def house_on(root: Path, settings: dict[str, Any] | None = None, *, started: bool = True) -> Iterator[House]:
    """A house with its own hub; stopped, and seen to leave nothing behind, at the end."""
    with LocalHub(root / "hub") as hub:
        house = House(root, hub, settings)
        try:
            if started:
                house.start()
            yield house
        finally:
            if house.process is not None:
                assert house.stop() == 0, house.log.read_text()
            assert "Traceback" not in house.log.read_text(), house.log.read_text()
            assert process.marked(house.state) == []


REPO = "acme/chat-GGUF"
FILE = "chat.gguf"


def commit(house: House, behaviour: Behaviour, repo: str = REPO, **others: bytes) -> str:
    """A new revision whose weights behave so; its sha."""
    files = {FILE: behaviour.weights(), **{name.replace("_", "."): data for name, data in others.items()}}
    return str(house.hub.commit(repo, files))


def add_chat(house: House, behaviour: Behaviour | None = None, *words: str) -> str:
    """Adds the model `chat` on weights that behave so; their sha."""
    sha = commit(house, behaviour or Behaviour())
    house.ok("model", "add", "chat", "--repo", REPO, "--engine", "toy", *words)
    return sha
