"""Programs that behave like the engines of the presets, each in what is peculiar about it.

`programs(folder)` makes a folder of them for the PATH; each is this module, run as `… behaving_engines KIND ARGS`. They
take the options that the real ones take, and no others; the weights are the toy engine's, see `Behaviour`.
"""

# ruff: noqa: N802 - the handler's methods are named by its base class

import argparse
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.toy_engine import Behaviour, Handler, ToyEngine, read

LONG_S = 600
HELD: list[socket.socket] = []
"""Until the process ends."""


class LlamaServer(Handler):
    """Its `/health` says 503 while it loads, its `/v1/models` 200; it answers to any name, with its own in replies."""

    def do_GET(self) -> None:
        if self.path == "/health" and not self.server.is_loaded:
            self._json(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if self.server.is_loaded:
            super().do_POST()
        else:
            self._json(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})

    def _knows(self, body: dict[str, Any]) -> bool:
        return True

    def _asked(self, body: dict[str, Any]) -> Behaviour:
        """By the request's own `lora`, where what is not named is off; else by the scales of the command line."""
        asked = body.get("lora")
        scales = self.server.scales if asked is None else {str(each["id"]): each["scale"] for each in asked}
        applied = next((index for index, scale in scales.items() if scale), None)
        return self.server.behaviour if applied is None else self.server.adapters[applied]


class Vllm(Handler):
    """Nothing listens until it is loaded; then it knows the names that it was given alone, and says where from."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            behaviour = self.server.behaviour
            name, root = behaviour.calls_itself or self.server.name, behaviour.root or self.server.path
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model", "root": root}]})
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self._answer_to(self.server.name, 404, "does not exist")

    def _answer_to(self, known: str, status: int, why: str) -> None:
        body = self._body()
        asked = body.get("model")
        if asked == known or asked in self.server.adapters:
            self._answer(body)
        else:
            self._json(status, {"error": {"message": f"The model `{asked}` {why}."}})


class Sglang(Handler):
    """`/health` says 200 as soon as it listens, `/health_generate` once it generates."""

    def do_GET(self) -> None:
        if self.path in ("/health", "/health_generate"):
            ready = self.path == "/health" or self.server.is_loaded
            self._send(200 if ready else 503, b"")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if self.server.is_loaded:
            super().do_POST()
        else:
            self._json(503, {"error": {"message": "the server is starting"}})

    def _knows(self, body: dict[str, Any]) -> bool:
        _, colon, adapter = body["model"].partition(":")
        return not colon or adapter in self.server.adapters

    def _asked(self, body: dict[str, Any]) -> Behaviour:
        adapter = body["model"].partition(":")[2] or body.get("lora_path")
        return self.server.adapters[adapter] if adapter else self.server.behaviour


class Mlx(Vllm):
    """`/health` always says 200, a request waits for the weights; another model's name makes it look for that model."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._json(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "what/the-cache-happens-to-have", "object": "model"}]})
        else:
            self._json(404, {"error": "not here"})

    def do_POST(self) -> None:
        while not self.server.is_loaded:
            time.sleep(0.02)
        self._answer_to("default_model", 404, "was not found on the hub")


class Tgi(Vllm):
    """Takes any name but `tgi` for that of an adapter."""

    def do_POST(self) -> None:
        self._answer_to("tgi", 422, "is no adapter that was loaded")


class Ollama(Vllm):
    """Answers at once, and knows no model before it is told of one whose content is among its blobs."""

    def do_GET(self) -> None:
        if self.path in ("/", "/api/version", "/health"):
            self._json(200, {"version": "0.12.0"})
        elif self.path == f"/v1/models/{self.server.name}" and self.server.name:
            self._json(200, {"id": self.server.name})
        else:
            self._json(404, {"error": {"message": "model not found"}})

    def do_POST(self) -> None:
        if self.path == "/api/create":
            self._create(self._body())
            return
        while self.server.name and not self.server.is_loaded:
            time.sleep(0.02)
        self._answer_to(self.server.name or "nothing", 404, "not found, try pulling it first")

    def _create(self, body: dict[str, Any]) -> None:
        for digest in body["files"].values():
            blob = Path(os.environ["OLLAMA_MODELS"], "blobs", digest.replace(":", "-"))
            if not blob.exists() or hashlib.sha256(blob.read_bytes()).hexdigest() != digest.partition(":")[2]:
                self._json(400, {"error": f"blob {digest} not found"})
                return
        model = next(iter(body["files"].values())).replace(":", "-")
        behaviour = read(Path(os.environ["OLLAMA_MODELS"], "blobs", model))
        if not behaviour.loads:
            self._json(400, {"error": "invalid file magic: these weights do not load"})
            return
        self.server.load(behaviour)
        self.server.name = body["model"]
        self._json(200, {"status": "success"})


class Kind(NamedTuple):
    """A program and how it is told what to serve."""

    handler: type[Handler]
    words: tuple[str, ...] = ()
    """Before the options."""
    path: str = ""
    """Option of the weights; empty: the first word after `words`, or nothing."""
    name: str = ""
    host: str = "--host"
    more: tuple[str, ...] = ()
    """Other options that are known."""
    listens_early: bool = True
    """Whether it listens while it loads."""
    flags: tuple[str, ...] = ()
    """Other options that are known and take nothing."""
    adapters: str = ""
    """Option of the adapters: each as NAME=PATH, or as PATH:SCALE, and then known by their order."""


KINDS = {
    "llama-server": Kind(
        LlamaServer,
        path="--model",
        name="--alias",
        more=("--mmproj", "--parallel"),
        flags=("--no-cache-prompt",),
        adapters="--lora-scaled",
    ),
    "vllm": Kind(
        Vllm,
        ("serve",),
        name="--served-model-name",
        listens_early=False,
        flags=("--enable-lora",),
        adapters="--lora-modules",
    ),
    "sglang": Kind(Sglang, ("serve",), path="--model-path", name="--served-model-name", adapters="--lora-paths"),
    "mlx_lm.server": Kind(Mlx, path="--model"),
    "text-generation-launcher": Kind(
        Tgi, path="--model-id", host="--hostname", more=("--shard-uds-path",), listens_early=False
    ),
    "ollama": Kind(Ollama, ("serve",)),
}


def programs(folder: Path) -> Path:
    """A folder with one program of each name, to be put on the PATH."""
    folder.mkdir()
    for name in KINDS:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.behaving_engines {name} "$@"\n')
        script.chmod(0o755)
    return folder


def parse(kind: Kind, argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for word in kind.words:
        parser.add_argument(word, choices=[word])
    if kind.handler is not Ollama:
        if kind.path:
            parser.add_argument(kind.path, dest="path", type=Path, required=True)
        else:
            parser.add_argument("path", type=Path)
        parser.add_argument(kind.host, dest="host", required=True)
        parser.add_argument("--port", type=int, required=True)
    if kind.name:
        parser.add_argument(kind.name, dest="name")
    for option in kind.more:
        parser.add_argument(option)
    for flag in kind.flags:
        parser.add_argument(flag, action="store_true")
    if kind.adapters:
        # llama.cpp adds up what is given again; the others forget what was given before.
        how = "extend" if kind.handler is LlamaServer else "store"
        parser.add_argument(kind.adapters, dest="adapters", nargs="+", action=how, default=[])
    options = parser.parse_args(argv)
    if kind.handler is Ollama:
        host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
        options.path, options.host, options.port, options.name = None, host, int(port), ""
    return options


def take_socket(path: str) -> None:
    """As the launcher does, but in Linux's namespace without files: what is killed leaves none behind."""
    taken = socket.socket(socket.AF_UNIX)
    try:
        taken.bind(f"\0{path}")
    except OSError:
        sys.exit(f"address already in use: {path}")
    HELD.append(taken)


def main() -> None:
    program, *argv = sys.argv[1:]
    kind = KINDS[program]
    options = parse(kind, argv)
    behaviour = read(options.path) if options.path else Behaviour()
    if not behaviour.loads:
        sys.exit("error: these weights do not load")
    if path := getattr(options, "shard_uds_path", None):
        take_socket(path)
    if behaviour.forks:
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG_S})"], start_new_session=True)

    def end(*_: object) -> None:
        # What is in flight is cut.
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour.ignores_term else end)
    if not kind.listens_early:
        time.sleep(behaviour.load_s)
    # llama-server calls itself by its path unless it is told otherwise, and so do those that take no name.
    name = getattr(options, "name", None) or str(options.path or "")
    if kind.handler is Sglang and ":" in name:
        sys.exit("AssertionError: served_model_name cannot contain a colon (':') character")
    server = ToyEngine((options.host, options.port), name, behaviour)
    for index, word in enumerate(getattr(options, "adapters", ())):
        if kind.handler is LlamaServer:
            path, _, scale = word.rpartition(":")
            server.adapters[str(index)], server.scales[str(index)] = read(Path(path)), float(scale)
        else:
            adapter, _, path = word.partition("=")
            server.adapters[adapter] = read(Path(path))
    if not kind.listens_early:
        server.ready_at = 0.0
    server.RequestHandlerClass = kind.handler
    server.path = str(options.path or "")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
