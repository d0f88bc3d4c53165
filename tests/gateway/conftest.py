"""A real worker process, a daemon's side of its link, and engines from scripts."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgwd.protocol.link import ArmRoute, CanaryRoute, ModelRoute, ReplicaRoute, Routes
from tests.gateway.client import wait_listening
from tests.gateway.daemon import Daemon
from tests.gateway.upstream import Script, Upstream
from tests.support.house import free_port

STABLE_REVISION = "a" * 40
CANARY_REVISION = "b" * 40


class Rig:
    """One worker with its surroundings. Model names are fresh, so that tests share a worker but no counts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.daemon = Daemon(folder / "gateway.sock")
        self.log = folder / "worker.log"
        self._names = itertools.count(1)
        self._versions = itertools.count(1)
        self._upstreams: list[Upstream] = []
        command = [sys.executable, "-m", "llmgwd.gateway.worker", "--link", str(self.daemon.path)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--worker-id", "w0-test"]
        command += ["--report-every", "0.1", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        wait_listening(self.port)

    def name(self) -> str:
        return f"model-{next(self._names)}"

    def upstream(self, script: Script) -> Upstream:
        upstream = Upstream(script)
        self._upstreams.append(upstream)
        return upstream

    def replica(self, target: Script | Upstream | int, served_name: str, *, counts_usage: bool = False) -> ReplicaRoute:
        if not isinstance(target, Upstream | int):
            target = self.upstream(target)
        port = target if isinstance(target, int) else target.port
        return ReplicaRoute(f"{served_name}-{port}", "127.0.0.1", port, served_name, counts_usage)

    def publish(self, *models: ModelRoute, keys: tuple[bytes, ...] | None = None) -> None:
        self.daemon.publish(Routes(next(self._versions), models, keys))

    def serve(
        self,
        stable: Script | Upstream | int,
        *,
        canary: Script | Upstream | int | None = None,
        share: float = 100,
        aliases: tuple[str, ...] = (),
        counts_usage: bool = False,
    ) -> str:
        """Routes one fresh model to these engines; its name. The canary's engine knows itself as NAME-canary."""
        name = self.name()
        canary_route = None
        if canary is not None:
            replica = self.replica(canary, f"{name}-canary", counts_usage=counts_usage)
            canary_route = CanaryRoute(f"canary-of-{name}", share, ArmRoute(CANARY_REVISION, (replica,)))
        arm = ArmRoute(STABLE_REVISION, (self.replica(stable, name, counts_usage=counts_usage),))
        self.publish(ModelRoute(name, arm, aliases, canary_route))
        return name

    def close_engines(self) -> None:
        """Takes every model out, then ends the engines with what is still connected to them."""
        self.publish()
        for upstream in self._upstreams:
            upstream.close()
        self._upstreams.clear()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.daemon.stop()
        for upstream in self._upstreams:
            upstream.close()


@pytest.fixture(scope="session")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # The folder is short: a socket's path has 107 bytes.
    rig = Rig(tmp_path_factory.mktemp("gw"), "--head-timeout", "1", "--max-body", "1048576", "--connect-timeout", "1")
    yield rig
    rig.close()


@pytest.fixture
def rig(shared_rig: Rig) -> Iterator[Rig]:
    assert shared_rig.process.poll() is None, shared_rig.log.read_text()
    yield shared_rig
    shared_rig.close_engines()


@pytest.fixture(scope="session")
def shared_tight_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("tight"), "--max-in-flight", "1", "--queue", "2", "--connect-timeout", "1")
    yield rig
    rig.close()


@pytest.fixture
def tight_rig(shared_tight_rig: Rig) -> Iterator[Rig]:
    """A worker that gives each replica one request at a time, and lets two wait."""
    assert shared_tight_rig.process.poll() is None, shared_tight_rig.log.read_text()
    yield shared_tight_rig
    shared_tight_rig.close_engines()


@pytest.fixture
def own_rig(tmp_path: Path) -> Iterator[Rig]:
    """A worker of the test's own, for what would disturb the others."""
    rig = Rig(tmp_path)
    yield rig
    rig.close()
