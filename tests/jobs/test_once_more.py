"""The command that a refused canary is asked for with once more."""

import pytest

from llmgwd.jobs.once_more import once_more
from llmgwd.protocol.messages import StartCanary, WeightsChoice
from llmgwd.protocol.states import OnDeadline


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(StartCanary("chat"), "", id="nothing given"),
        pytest.param(StartCanary("chat", weights=WeightsChoice(path="/m/b.gguf")), "--path /m/b.gguf ", id="path"),
        pytest.param(
            StartCanary("chat", weights=WeightsChoice(path="/my models/b.gguf")),
            "--path '/my models/b.gguf' ",
            id="path with a blank",
        ),
        pytest.param(
            StartCanary("chat", 25, WeightsChoice(repo="a/b", revision="v2", file="*.gguf")),
            "--repo a/b --revision v2 --file '*.gguf' --percent 25 ",
            id="repository",
        ),
        pytest.param(
            StartCanary("chat", weights=WeightsChoice(quant="Q8_0", allow_unsafe=True)),
            "--quant Q8_0 --allow-unsafe ",
            id="quantisation",
        ),
        pytest.param(
            StartCanary("chat", engine_args=("--ctx-size", "4096")),
            "--engine-arg --ctx-size --engine-arg 4096 ",
            id="engine arguments",
        ),
        pytest.param(
            StartCanary(
                "chat", weights=WeightsChoice(urls=("http://a", "http://b"), served_name="theirs", key_file="/etc/key")
            ),
            "--url http://a --url http://b --served-name theirs --key-file /etc/key ",
            id="what others serve",
        ),
        pytest.param(
            StartCanary("chat", engine="vllm", gpus=2, fit_check=False),
            "--engine vllm --gpus 2 --no-fit-check ",
            id="engine and GPUs",
        ),
        pytest.param(
            StartCanary("chat", steps=(5, 25.5), hold_s=1800, auto_promote=True),
            "--steps 5,25.5 --hold 1800s --auto-promote ",
            id="steps",
        ),
        pytest.param(StartCanary("chat", steps=(5, 25)), "--steps 5,25 --hold 0s ", id="steps without a hold"),
        pytest.param(
            StartCanary("chat", deadline_s=1036800, on_deadline=OnDeadline.ABORT),
            "--deadline 1036800s --on-deadline abort ",
            id="deadline",
        ),
        pytest.param(
            StartCanary("chat", limits={"ttft": 1.5, "rejected": None}, ignore_load=True),
            "--limit ttft=1.5 --limit rejected=off --ignore-load ",
            id="limits",
        ),
    ],
)
def test_a_canary_is_asked_for_once_more_as_it_was(request_: StartCanary, words: str) -> None:
    assert once_more(request_) == f"llmgw ctl model canary chat {words}--again"
