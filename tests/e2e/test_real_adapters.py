"""An adapter on the embedded engine and the small real model: in the answers to who asks for it, and in no others."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.demo_adapter import make_adapter
from tests.support.demo_weights import ensure_demo_weights
from tests.support.house import House, house_on

pytestmark = pytest.mark.weights

REPO, FILE = "demo/SmolLM2-GGUF", "SmolLM2.gguf"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    weights, root = ensure_demo_weights(), tmp_path_factory.mktemp("house")
    make_adapter(weights.base, root / "wild.gguf")
    with house_on(root) as shared:
        shared.hub.commit(REPO, {FILE: weights.base})
        args = ["--engine-arg=--threads=1", "--adapter", f"wild={root / 'wild.gguf'}"]
        shared.ok("model", "add", "chat", "--repo", REPO, *args, timeout_s=120)
        shared.hub.commit(REPO, {FILE: weights.good})
        yield shared


def ask(house: House, model: str, *, arm: str = "") -> str:
    client = openai.OpenAI(base_url=f"{house.gateway}/v1", api_key="none", max_retries=0, timeout=60)
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=16,
        temperature=0,
        extra_headers={"x-llmgw-arm": arm} if arm else None,
    )
    assert answer.model == model
    return answer.choices[0].message.content or ""


def test_the_adapter_is_in_its_own_answers_only_and_none_goes_on_from_anothers_prompt(house: House) -> None:
    plain, wild = ask(house, "chat"), ask(house, "chat:wild")
    assert plain != wild
    for _ in range(3):
        assert ask(house, "chat") == plain
        assert ask(house, "chat:wild") == wild


def test_a_promoted_canary_serves_the_adapter_at_once(house: House) -> None:
    old = ask(house, "chat:wild")
    house.ok("model", "canary", "chat", "--percent", "50", timeout_s=120)
    canarys = ask(house, "chat", arm="canary")
    assert ask(house, "chat:wild") == old
    pids = [replica["pid"] for replica in house.model()["replicas"]]
    house.ok("model", "promote", "chat", timeout_s=120)
    assert ask(house, "chat") == canarys
    assert ask(house, "chat:wild") not in (canarys, "")
    assert [replica["pid"] for replica in house.model()["replicas"]] != pids


def test_weights_that_are_no_adapter_fail_with_the_engines_own_reason(house: House) -> None:
    base = ensure_demo_weights().base
    done = house.ctl(
        *("model", "add", "other", "--path", str(base), "--adapter", f"x={base}", "--engine-arg=--threads=1"),
        timeout_s=120,
    )
    assert done.returncode == 1, done.stdout
    assert "failed at step replicas" in done.stderr
    assert "lora" in done.stderr.lower()
