"""Ollama as an engine of one model: `ollama serve` on a folder of its own, taught the weights by its API.

Run as `python -m llmgwd.engines.ollama --model FILE --name NAME --port PORT`. Ollama wants weights in its own folder
under their hash; they are linked there, not copied. This process ends when `ollama serve` does, with its status, and
with status 1 when it does not take the weights; on SIGTERM it ends `ollama serve` first.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

START_TIMEOUT_S = 60.0
CREATE_TIMEOUT_S = 600.0
END_TIMEOUT_S = 8.0


class NotTakenError(Exception):
    """Ollama did not take the weights; says why."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmgwd.engines.ollama", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, type=Path, help="GGUF file")
    parser.add_argument("--projector", type=Path, help="projector of a model that sees")
    parser.add_argument("--name", required=True, help="name that the model is to be asked for")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=0, help="requests decoded at once; 0: Ollama decides")
    parser.add_argument("--ctx-size", type=int, default=0, help="tokens for each request; 0: Ollama decides")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="llmgw-ollama-") as folder:
        try:
            server = subprocess.Popen(["ollama", "serve"], env=environment(options, folder))  # noqa: S607 - by the PATH
        except OSError as error:
            print(f"ollama cannot be started: {error.strerror}", file=sys.stderr)  # noqa: T201
            return 1
        try:
            _teach(server, options, Path(folder))
            return server.wait()
        except NotTakenError as error:
            print(f"ollama does not take {options.model}: {error}", file=sys.stderr)  # noqa: T201
            return 1
        finally:
            _end(server)


def environment(options: argparse.Namespace, folder: str) -> dict[str, str]:
    """What `ollama serve` is told: nothing of it can be said on its command line."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    told = {
        "OLLAMA_HOST": f"{host}:{options.port}",
        "OLLAMA_MODELS": folder,
        # It must neither unload what is served nor tidy away what it was not told of yet.
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NOPRUNE": "1",
    }
    if options.parallel:
        told["OLLAMA_NUM_PARALLEL"] = str(options.parallel)
    if options.ctx_size:
        told["OLLAMA_CONTEXT_LENGTH"] = str(options.ctx_size)
    return {**os.environ, **told}


def _teach(server: "subprocess.Popen[bytes]", options: argparse.Namespace, folder: Path) -> None:
    """Raises NotTakenError."""
    files = {}
    for path in (options.model, options.projector):
        if path is not None:
            files[path.name] = _link(path, folder / "blobs")
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{options.port}"
    until = time.monotonic() + START_TIMEOUT_S
    while not _answers(f"{address}/api/version"):
        if server.poll() is not None:
            raise NotTakenError(f"`ollama serve` ended with status {server.returncode}")
        if time.monotonic() > until:
            raise NotTakenError(f"`ollama serve` did not answer within {START_TIMEOUT_S:g} s")
        time.sleep(0.1)  # polling another process: nothing signals that it answers
    _create(f"{address}/api/create", {"model": options.name, "files": files, "stream": False})


def _link(path: Path, blobs: Path) -> str:
    """Puts the file where Ollama looks for content of its hash; returns the hash as Ollama writes it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    blobs.mkdir(exist_ok=True)
    (blobs / f"sha256-{digest}").symlink_to(path.resolve())
    return f"sha256:{digest}"


def _answers(url: str) -> bool:
    try:
        with _open(url, timeout_s=2.0) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _create(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})  # noqa: S310
    try:
        with _open(request, CREATE_TIMEOUT_S) as reply:
            said = json.load(reply)
    except urllib.error.HTTPError as error:
        raise NotTakenError(f"{error.code} {error.read(300).decode(errors='replace')}") from error
    except (OSError, ValueError) as error:
        raise NotTakenError(str(error)) from error
    if said.get("error") or said.get("status") != "success":
        raise NotTakenError(json.dumps(said)[:300])


def _open(request: "str | urllib.request.Request", timeout_s: float) -> Any:
    # Not urlopen: the environment may name a proxy, which knows nothing of this machine's ports.
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s)


def _leave(*_: object) -> NoReturn:
    raise SystemExit(0)


def _end(server: "subprocess.Popen[bytes]") -> None:
    """Ends `ollama serve`, which ends its own runners on TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
