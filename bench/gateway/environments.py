"""What only the benchmark needs: peers from PyPI, each in an environment of its own, and tools from Debian."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(".cache/bench")
PEERS = {"vllm-router": "vllm-router", "sglang-router": "sglang-router", "litellm": "litellm[proxy]"}
"""Environment and program name by what pip installs for it."""


class MissingError(Exception):
    """Something the benchmark needs is not there and could not be installed."""


def ensure_peer(name: str) -> Path:
    """The peer's program, installed now if it is not there yet. Raises MissingError."""
    folder = (FOLDER / name).resolve()
    program = folder / "bin" / name
    if program.exists():
        return program
    print(f"installing {PEERS[name]} into {folder}", file=sys.stderr)
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, PEERS[name]], stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise MissingError(f"{PEERS[name]} could not be installed: {result.stderr.strip()}")
    return program


def peer_version(name: str) -> str:
    """The installed version of a peer's distribution."""
    code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
    return _output([str((FOLDER / name).resolve() / "bin" / "python"), "-c", code])


def ensure_debian(name: str) -> str:
    """The program, named as its Debian package; installed if it is not there and may be. Raises MissingError."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    if found is None:
        _apt_install(name)
        found = shutil.which(name, path=path)
    if found is None:
        raise MissingError(f"{name} was installed but is not on {path}")
    return found


def nginx_version() -> str:
    """Such as 1.22.1; nginx tells it on its standard error."""
    result = subprocess.run([ensure_debian("nginx"), "-v"], stderr=subprocess.PIPE, text=True, check=True)
    return result.stderr.strip().rpartition("/")[2]


def _apt_install(name: str) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise MissingError(f"{name} is not installed; install it (on Debian as root: apt-get install {name})")
    print(f"installing {name} with apt-get", file=sys.stderr)
    # RUNLEVEL=1 keeps the package from starting its service: only the program is wanted.
    settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", name]):
        result = subprocess.run(["apt-get", "--quiet", *arguments], env=settings, capture_output=True, text=True)
        if result.returncode:
            raise MissingError(f"apt-get {arguments[0]} failed for {name}: {result.stderr.strip()}")


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
