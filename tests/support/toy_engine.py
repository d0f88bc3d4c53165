"""A small real engine whose weights say how it behaves: `python -m tests.support.toy_engine --path FILE …`.

It speaks enough of OpenAI's API for the gateway and the daemon to be tested with real processes and sockets, in a few
milliseconds an answer. Its "weights" are a JSON file, see `Behaviour`.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Behaviour:
    """What the weights make of the engine."""

    words: str = "hello from the toy engine"
    """The answer; one token a word."""
    finish: str = "stop"
    status: int = 200
    """Of completions; /health is not touched by it."""
    fail_after: int | None = None
    """This many completions are answered, the rest get status 500."""
    hangs_after: int | None = None
    """This many completions are answered, the rest are taken and never answered."""
    refuse_after: int | None = None
    """This many completions are answered, the rest get status 400."""
    token_s: float = 0.0
    first_token_s: float = 0.0
    load_s: float = 0.0
    """How long /health says 503."""
    loads: bool = True
    """False: the process ends with status 1 instead of serving."""
    ignores_term: bool = False
    raw: str | None = None
    """The body of every completion, as Latin-1, in place of a proper one."""
    ends_after: int | None = None
    """The process ends with status 3, and says so, instead of answering this many completions and one."""
    one_at_a_time: bool = False
    """A completion waits until the one before it is answered whole."""
    cut_after: int | None = None
    """The connection is cut after this many streamed words."""

    forks: bool = False
    """A child of the engine has a session of its own and outlives it."""
    calls_itself: str | None = None
    """The name that it lists, whatever it was given."""
    root: str | None = None
    """Where it says that its weights are from, if it says so at all."""

    def weights(self) -> bytes:
        """The file that makes an engine behave so."""
        return json.dumps(asdict(self)).encode()


FOLDER_FILE = "model.safetensors"
"""The file of a folder of weights."""

ARGV = [
    sys.executable,
    "-m",
    "tests.support.toy_engine",
    *("--path", "{path}", "--name", "{name}", "--host", "{host}", "--port", "{port}"),
]
"""As an engine's `argv` in the configuration."""

ADAPTERS = {"each": ["--adapter", "{name}:{adapter}={path}"], "asked_as": "{name}:{adapter}"}
"""As its `adapters`. An adapter is a file like that of weights, of which the words count."""


class Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    protocol_version = "HTTP/1.1"
    server: "ToyEngine"

    def do_GET(self) -> None:
        if self.path == "/health":
            loaded = self.server.is_loaded
            self._json(200 if loaded else 503, {"status": "ok" if loaded else "loading"})
        elif self.path == "/v1/models":
            name = self.server.behaviour.calls_itself or self.server.name
            self._json(200, {"object": "list", "data": [{"id": name, "object": "model"}]})
        else:
            self._json(404, {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        self._answer(self._body())

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))) or b"{}")
        return body

    def _answer(self, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        if not self._knows(body):
            self._json(404, {"error": {"message": f"there is no model {body.get('model')}"}})
            return
        number = self.server.count()
        if behaviour.ends_after is not None and number > behaviour.ends_after:
            print("error: the toy is broken", file=sys.stderr, flush=True)
            os._exit(3)
        if behaviour.fail_after is not None and number > behaviour.fail_after:
            self._json(500, {"error": {"message": "out of luck"}})
        elif behaviour.hangs_after is not None and number > behaviour.hangs_after:
            self.connection.recv(1)  # returns when the gateway has closed its end
            self.close_connection = True
        elif behaviour.refuse_after is not None and number > behaviour.refuse_after:
            self._json(400, {"error": {"message": "not like this"}})
        elif behaviour.raw is not None:
            self._send(200, behaviour.raw.encode("latin-1"))
        elif behaviour.status != 200:
            self._json(behaviour.status, {"error": {"message": "as the weights say"}})
        elif self.path == "/v1/chat/completions":
            with self.server.turn if behaviour.one_at_a_time else nullcontext():
                time.sleep(behaviour.first_token_s)
                self._stream(body) if body.get("stream") else self._whole(body)
        elif self.path == "/v1/embeddings":
            self._json(200, {"object": "list", "data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 3}})
        else:
            self._json(404, {"error": {"message": "not here"}})

    def _knows(self, body: dict[str, Any]) -> bool:
        return not self.server.adapters or body.get("model") in (self.server.name, *self.server.adapters)

    def _asked(self, body: dict[str, Any]) -> Behaviour:
        """The adapter that is asked for, or the model."""
        return self.server.adapters.get(body.get("model", ""), self.server.behaviour)

    def _words(self, body: dict[str, Any]) -> tuple[list[str], str]:
        words = self._asked(body).words.split()
        most = int(body.get("max_tokens") or 1000)
        return words[:most], "length" if len(words) > most else self.server.behaviour.finish

    def _whole(self, body: dict[str, Any]) -> None:
        words, finish = self._words(body)
        time.sleep(self.server.behaviour.token_s * len(words))
        message = {"role": "assistant", "content": " ".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        sees = {} if self.server.projector is None else {"projector": self.server.projector}
        base = {**self._base("chat.completion", body), **sees}
        self._json(200, {**base, "choices": [choice], "usage": _usage(len(words))})

    def _stream(self, body: dict[str, Any]) -> None:
        words, finish = self._words(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event(body, {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
        for number, word in enumerate(words):
            if number == self.server.behaviour.cut_after:
                self.close_connection = True
                self.connection.close()
                return
            time.sleep(self.server.behaviour.token_s)
            self._event(body, {"choices": [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]})
        self._event(body, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event(body, {"choices": [], "usage": _usage(len(words))})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _base(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"id": "toy", "object": kind, "created": 1, "model": body.get("model", self.server.name)}

    def _event(self, body: dict[str, Any], fields: dict[str, Any]) -> None:
        chunk = {**self._base("chat.completion.chunk", body), **fields}
        self._chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


def read(path: Path) -> Behaviour:
    """What weights make of the engine, from a file or a folder."""
    return Behaviour(**json.loads((path / FOLDER_FILE if path.is_dir() else path).read_text()))


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}


class ToyEngine(ThreadingHTTPServer):
    """One engine process's server."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        name: str,
        behaviour: Behaviour,
        projector: str | None = None,
        adapters: dict[str, Behaviour] | None = None,
    ) -> None:
        super().__init__(address, Handler)
        self.projector = projector
        self.name = name
        self.adapters = adapters or {}
        self.scales: dict[str, float] = {}
        """Of adapters that are applied to requests which do not say; only some engines have them."""
        self.path = ""
        self.behaviour = behaviour
        self.ready_at = time.monotonic() + behaviour.load_s
        self.turn = threading.Lock()
        self._counting = threading.Lock()
        self._completions = 0

    @property
    def is_loaded(self) -> bool:
        return time.monotonic() >= self.ready_at

    def load(self, behaviour: Behaviour) -> None:
        """Begins to load other weights."""
        self.behaviour = behaviour
        self.ready_at = time.monotonic() + behaviour.load_s

    def count(self) -> int:
        """How many completions it was asked for, this one included."""
        with self._counting:
            self._completions += 1
            return self._completions


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--path", "--name", "--host", "--port"):
        parser.add_argument(name, required=True)
    parser.add_argument("--projector", help="file whose words each whole answer has as its `projector`")
    parser.add_argument("--adapter", action="append", default=[])
    options = parser.parse_args()
    behaviour = read(Path(options.path))
    adapters = {name: read(Path(path)) for name, _, path in (each.partition("=") for each in options.adapter)}
    if not behaviour.loads:
        sys.exit("these weights do not load")
    if behaviour.ignores_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    projector = Path(options.projector).read_text() if options.projector else None
    ToyEngine((options.host, int(options.port)), options.name, behaviour, projector, adapters).serve_forever()


if __name__ == "__main__":
    main()
