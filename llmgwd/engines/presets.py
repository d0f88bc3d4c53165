"""The engines that need no configuration: what each is started with, and what is different about it.

An entry says no more than it must. What is known of each engine, and where that was learned, is in `docs/engines.md`.
"""

import sys

from llmgwd.config import EXTERNAL
from llmgwd.engines.templates import AdapterTemplate, Engine
from llmgwd.protocol.states import WeightsFormat

LLAMA_CPP_LORA = {"lora": '[{{"id":{index},"scale":1.0}}]'}

PRESETS: dict[str, Engine] = {
    "llamacpp": Engine(
        argv=(
            *(sys.executable, "-m", "llmgwd.engines.embedded"),
            *("--model", "{path}", "--mmproj", "{projector}", "--alias", "{name}"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        slots=4,
        weights=WeightsFormat.GGUF,
        lists_itself=True,
        adapters=AdapterTemplate(each=("--lora", "{path}"), fields=LLAMA_CPP_LORA),
    ),
    "llama-server": Engine(
        argv=(
            "llama-server",
            *("--model", "{path}", "--mmproj", "{projector}", "--alias", "{name}"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        weights=WeightsFormat.GGUF,
        lists_itself=True,
        # Without a scale of 0 every request would have them, whatever --lora-init-without-apply says; and a prompt that
        # was read with one would be gone on from without it.
        adapters=AdapterTemplate(
            argv=("--no-cache-prompt",), each=("--lora-scaled", "{path}:0"), fields=LLAMA_CPP_LORA
        ),
    ),
    "vllm": Engine(
        argv=("vllm", "serve", "{path}", "--served-model-name", "{name}", "--host", "{host}", "--port", "{port}"),
        weights=WeightsFormat.FOLDER,
        lists_itself=True,
        adapters=AdapterTemplate(
            # The option counts once, with all that follow it. One called as its model is would never be asked.
            argv=("--enable-lora", "--lora-modules"),
            each=("{name}:{adapter}={path}",),
            asked_as="{name}:{adapter}",
        ),
        gpus=1,
        ready_timeout_s=1200.0,
        # Its first answer may still compile kernels, and its workers give the GPU's memory back one by one.
        first_answer_s=300.0,
        stop_grace_s=30.0,
    ),
    "sglang": Engine(
        argv=(
            *("sglang", "serve", "--model-path", "{path}", "--served-model-name", "{name}"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        # Not /health, which may say 200 though nothing can be generated.
        health="/health_generate",
        weights=WeightsFormat.FOLDER,
        # What follows a colon is an adapter to it, and it does not start under such a name.
        takes_colons=False,
        lists_itself=True,
        adapters=AdapterTemplate(
            argv=("--lora-paths",), each=("{adapter}={path}",), fields={"lora_path": '"{adapter}"'}
        ),
        gpus=1,
        ready_timeout_s=1200.0,
        first_answer_s=300.0,
        stop_grace_s=30.0,
    ),
    "mlx": Engine(
        argv=("mlx_lm.server", "--model", "{path}", "--host", "{host}", "--port", "{port}"),
        weights=WeightsFormat.FOLDER,
        # Any other name than this is taken for a path or repository, which it would load in place of what it has.
        own_name="default_model",
        # Its page says 200 whatever is the matter, so loading counts towards the first answer.
        first_answer_s=600.0,
    ),
    "tgi": Engine(
        argv=(
            *("text-generation-launcher", "--model-id", "{path}", "--hostname", "{host}", "--port", "{port}"),
            # By default two of them would share this socket.
            *("--shard-uds-path", "/tmp/llmgw-tgi-{port}"),  # noqa: S108 - a socket's path has to be short
        ),
        weights=WeightsFormat.FOLDER,
        # Any other name than this is taken for that of an adapter.
        own_name="tgi",
        gpus=1,
        ready_timeout_s=1200.0,
        stop_grace_s=30.0,
    ),
    "ollama": Engine(
        argv=(
            *(sys.executable, "-m", "llmgwd.engines.ollama"),
            *("--model", "{path}", "--projector", "{projector}", "--name", "llmgw"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        program="ollama",
        # Its own page says 200 before it knows the model.
        health="/v1/models/llmgw",
        weights=WeightsFormat.GGUF,
        own_name="llmgw",
        # It loads the model when it is first asked.
        first_answer_s=600.0,
    ),
    EXTERNAL: Engine(argv=(), health="", weights=WeightsFormat.NONE),
}
