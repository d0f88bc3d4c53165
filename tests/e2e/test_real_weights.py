"""The embedded engine on the small real model, through the gateway, with the official client."""

from collections.abc import Iterator

import openai
import pytest
from openai import omit
from openai.types.chat import ChatCompletionMessageParam

from tests.support.demo_weights import DemoWeights, ensure_demo_weights
from tests.support.house import House, house_on, wait_until

pytestmark = pytest.mark.weights

REPO, FILE = "demo/SmolLM2-GGUF", "SmolLM2.gguf"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def weights() -> DemoWeights:
    return ensure_demo_weights()


@pytest.fixture(scope="module")
def house(weights: DemoWeights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """`chat` on the base weights, with a canary on the good ones at 50 %."""
    with house_on(tmp_path_factory.mktemp("house")) as shared:
        shared.hub.commit(REPO, {FILE: weights.base})
        args = ["--engine-arg=--threads=1", "--alias", "gpt"]
        shared.ok("model", "add", "chat", "--repo", REPO, *args, timeout_s=120)
        shared.hub.commit(REPO, {FILE: weights.good})
        job = shared.json("model", "canary", "chat", "--percent", "50", timeout_s=120)
        assert "tokens/s" in next(step["detail"] for step in job["steps"] if step["name"] == "smoke test")
        yield shared


def client(house: House) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{house.gateway}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("name", ["chat", "gpt"])
def test_the_official_client_gets_whole_answers_from_both_arms(house: House, arm: str, name: str) -> None:
    completion = client(house).chat.completions.create(
        model=name, messages=MESSAGES, max_tokens=24, temperature=0, extra_headers={"x-llmgw-arm": arm}
    )
    assert completion.model == name
    assert len((completion.choices[0].message.content or "").split()) > 1
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 1


@pytest.mark.parametrize("arm", ["stable", "canary"])
@pytest.mark.parametrize("name", ["chat", "gpt"])
@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
def test_the_official_client_streams_from_both_arms(house: House, arm: str, name: str, usage: bool) -> None:
    chunks = list(
        client(house).chat.completions.create(
            model=name,
            messages=MESSAGES,
            max_tokens=24,
            temperature=0,
            stream=True,
            extra_headers={"x-llmgw-arm": arm},
            stream_options={"include_usage": True} if usage else omit,
        )
    )
    assert {chunk.model for chunk in chunks} == {name}
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert len(text.split()) > 1
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] in ("stop", "length")
    assert (chunks[-1].usage is not None) is usage
    assert all(chunk.choices for chunk in chunks[:-1])
    assert bool(chunks[-1].choices) is not usage


def test_both_arms_are_measured(house: House) -> None:
    for turn in range(8):
        create = client(house).chat.completions.create
        if turn % 2 == 0:
            list(create(model="chat", messages=MESSAGES, max_tokens=8, stream=True))
        else:
            create(model="chat", messages=MESSAGES, max_tokens=8)
    canary = wait_until(
        lambda: (found := house.canary()) and found["canary"]["requests"] + found["stable"]["requests"] == 8 and found
    )
    for arm in ("stable", "canary"):
        assert canary[arm]["requests"] == 4
        assert canary[arm]["outcomes"] == {"ok": 4}
        assert 0 < canary[arm]["ttft_s"] < 30
        assert 1 < canary[arm]["tokens_per_s"] < 10_000
        assert 4 < canary[arm]["completion_tokens"] <= 4 * 8
        assert 0 < canary[arm]["length_share"] <= 1


def test_weights_cut_in_half_fail_at_placement_with_the_engines_own_reason(house: House, weights: DemoWeights) -> None:
    house.ok("model", "add", "other", "--path", str(weights.base), "--engine-arg=--threads=1", timeout_s=120)
    done = house.ctl("model", "canary", "other", "--path", str(weights.broken), timeout_s=120)
    assert done.returncode == 1
    assert "failed at step placement" in done.stderr
    assert "data is not within the file bounds" in done.stderr
    assert house.model("other")["ready"] == 1
    house.ok("model", "remove", "other", "--yes")
