"""The embedded engine: llama.cpp's own OpenAI server, from the `xllamacpp` package, in a process of its own.

Run as `python -m llmgwd.engines.embedded --model FILE --alias NAME --port PORT`. It ends with status 1 when the weights
do not load, and on SIGTERM with status 0.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llmgwd.engines.embedded", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="GGUF file, or the first shard of a set")
    parser.add_argument("--alias", required=True, help="model name that replies carry")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, default=0, help="tokens over all slots; 0: as the model was trained")
    parser.add_argument("--parallel", type=int, default=4, help="requests decoded at once")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: one a core")
    parser.add_argument("--n-gpu-layers", type=int, default=-1, help="layers on the GPU; -1: as many as fit")
    parser.add_argument("--chat-template", default="", help="in place of the weights' own")
    parser.add_argument("--mmproj", default="", help="projector of a model that sees")
    parser.add_argument(
        "--lora", action="append", default=[], metavar="FILE", help="adapter for the requests that ask for it"
    )
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        import xllamacpp
    except ImportError:
        print("the embedded engine needs the package xllamacpp: pip install 'llmgw[llamacpp]'", file=sys.stderr)  # noqa: T201
        return 1
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.n_gpu_layers = options.n_gpu_layers
    params.embedding = options.embeddings
    params.ui = False
    if options.lora:
        params.lora_adapters = [_adapter(xllamacpp.CommonAdapterLoraInfo(), path) for path in options.lora]
        # It would go on from a prompt that was read with another adapter, and answer nonsense (llama.cpp issue 26207).
        params.cache_prompt = False
    if options.threads:
        params.cpuparams.n_threads = options.threads
    if options.chat_template:
        params.chat_template = options.chat_template
    if options.mmproj:
        params.mmproj.path = options.mmproj
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"{options.model} does not load: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"serving {options.alias} at {server.listening_address}", file=sys.stderr, flush=True)  # noqa: T201
    ended.wait()
    return 0


def _adapter(info: Any, path: str) -> Any:
    """Loaded at scale 0: `lora_init_without_apply` keeps it from the start only, not from requests without one."""
    info.path, info.scale = path, 0.0
    return info


if __name__ == "__main__":
    sys.exit(main())
