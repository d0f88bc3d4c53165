"""What a replica will take: by its weights and command line, and by its last start."""

from datetime import UTC, datetime

import pytest

from llmgwd.domain.estimate import Footprint, Weighed, as_measured, context_bytes, estimate

MIB, GIB = 1 << 20, 1 << 30
GGUF = Weighed((("sha256-a", 4 * GIB), ("sha256-b", GIB)), is_gguf=True, context_length=8192, cache_values=11520)
FOLDER = Weighed((("sha256-a", 4 * GIB),), context_length=8192, cache_values=11520)
WHEN = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("weighed", "words", "slots", "tokens", "number_bytes"),
    [
        pytest.param(GGUF, [], None, 8192, 2, id="as trained"),
        pytest.param(GGUF, [], 4, 4 * 8192, 2, id="as trained, for each slot of llama.cpp"),
        pytest.param(GGUF, ["--kv-unified"], 4, 8192, 2, id="as trained, one for all slots"),
        pytest.param(FOLDER, [], 256, 8192, 2, id="one is what vLLM must have room for"),
        pytest.param(GGUF, ["--ctx-size", "2048"], 4, 2048, 2, id="as asked for"),
        pytest.param(GGUF, ["-c", "0"], 1, 8192, 2, id="0 is as trained"),
        pytest.param(FOLDER, ["--max-model-len=4096"], 256, 4096, 2, id="in one word"),
        pytest.param(FOLDER, ["--max-model-len", "32k"], 256, 8192, 2, id="not a number"),
        pytest.param(GGUF, ["-c", "2048", "-ctk", "q8_0", "-ctv", "q8_0"], 4, 2048, 34 / 32, id="smaller numbers"),
        pytest.param(FOLDER, ["--kv-cache-dtype=fp8"], 1, 8192, 1, id="eight bits"),
        pytest.param(Weighed(()), ["-c", "2048"], 1, 0, 2, id="weights that say nothing"),
    ],
)
def test_context(weighed: Weighed, words: list[str], slots: int | None, tokens: int, number_bytes: float) -> None:
    assert context_bytes(weighed, words, slots) == int(tokens * 11520 * number_bytes)


def test_the_formula_agrees_with_what_was_measured() -> None:
    """SmolLM2-135M at Q8_0: 231 MiB besides its weights with one slot, 773 with four."""
    weighed = Weighed((("w", 144_811_072),), is_gguf=True, context_length=8192, cache_values=11520)
    for slots, measured in ((1, 231), (4, 773)):
        assert measured * MIB < estimate(weighed, [], slots, 0).private_bytes < (measured + 250) * MIB


def test_weights_that_are_mapped_are_not_private() -> None:
    found = estimate(GGUF, ["-c", "1024"], 4, 0)
    assert found.mapped == GGUF.files
    assert found.host_bytes - found.private_bytes == 5 * GIB
    assert sum(size for _, size in found.parts) == found.host_bytes


@pytest.mark.parametrize("words", [["--no-mmap"], ["--mlock"]])
def test_weights_that_llama_cpp_is_told_to_keep_are_private(words: list[str]) -> None:
    found = estimate(GGUF, words, 4, 0)
    assert found.mapped == ()
    assert found.private_bytes > 5 * GIB


def test_weights_on_gpus_are_spread_over_them() -> None:
    found = estimate(FOLDER, [], None, 2)
    assert found.gpus == 2
    assert found.gpu_bytes == sum(size for _, size in found.parts) // 2
    assert found.private_bytes < 5 * GIB


def footprint(weights: int, private: int = GIB, context: int = 7, maps: bool = True, gpu: int = 0) -> Footprint:
    return Footprint("chat", "runs", weights, context, private, maps, gpu, WHEN)


@pytest.mark.parametrize(
    ("weighed", "known", "private"),
    [
        pytest.param(GGUF, [footprint(5 * GIB)], GIB, id="the same size"),
        pytest.param(GGUF, [footprint(int(4.7 * GIB))], GIB, id="similar"),
        pytest.param(GGUF, [footprint(int(4.7 * GIB), 2 * GIB), footprint(5 * GIB)], GIB, id="the most similar"),
        pytest.param(FOLDER, [footprint(4 * GIB - MIB, 6 * GIB, maps=False)], 6 * GIB + MIB, id="larger and private"),
        pytest.param(GGUF, [footprint(2 * GIB)], None, id="other weights"),
        pytest.param(GGUF, [footprint(5 * GIB, context=8)], None, id="another context"),
        pytest.param(GGUF, [], None, id="never started"),
    ],
)
def test_what_the_last_start_took(weighed: Weighed, known: list[Footprint], private: int | None) -> None:
    found = as_measured(weighed, 7, 0, known)
    assert (found.private_bytes if found else None) == private
    if found is not None:
        assert found.measured
        assert found.mapped == (weighed.files if weighed.is_gguf else ())


def test_what_the_last_start_took_of_its_gpus() -> None:
    found = as_measured(FOLDER, 7, 2, [footprint(4 * GIB, 3 * GIB, gpu=10 * GIB, maps=False)])
    assert found is not None
    assert (found.private_bytes, found.gpus, found.gpu_bytes, found.mapped) == (3 * GIB, 2, 10 * GIB, ())
