import hashlib

import msgspec
import pytest

from llmgwd.domain.catalog import Origin
from llmgwd.domain.differences import what_changed
from llmgwd.domain.files import RepoFile
from llmgwd.domain.traits import Traits


def file(path: str, content: str) -> RepoFile:
    return RepoFile(path, 1 << 30, sha256=hashlib.sha256(content.encode()).hexdigest())


def origin(*files: RepoFile, traits: Traits | None = None) -> Origin:
    return Origin(repo="a/b", revision="1" * 40, contents=files, traits=traits)


WEIGHTS, BETTER = file("m-Q8_0.gguf", "old"), file("m-Q8_0.gguf", "new")
OLD = Traits(tokenizer="a", chat_template="a", context_length=8192, quantisation="Q8_0")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param(origin(WEIGHTS), origin(WEIGHTS), "the same weights", id="same"),
        pytest.param(origin(), origin(WEIGHTS), "", id="not known"),
        pytest.param(origin(WEIGHTS), origin(BETTER), "weights (1 of 1 files, 1.0 GiB new)", id="by hash"),
        pytest.param(
            origin(WEIGHTS, traits=OLD),
            origin(BETTER, traits=msgspec.structs.replace(OLD, chat_template="b", context_length=32768)),
            "weights (1 of 1 files, 1.0 GiB new), chat template, context length 8192 → 32768",
            id="within",
        ),
        pytest.param(
            origin(WEIGHTS, file("tokenizer.json", "1"), traits=OLD),
            origin(WEIGHTS, file("tokenizer.json", "2"), traits=msgspec.structs.replace(OLD, tokenizer="b")),
            "tokenizer",
            id="told once",
        ),
        pytest.param(
            origin(WEIGHTS, traits=OLD),
            origin(BETTER, traits=Traits(context_length=8192)),
            "weights (1 of 1 files, 1.0 GiB new)",
            id="what is not known is no difference",
        ),
    ],
)
def test_what_changed(old: Origin, new: Origin, said: str) -> None:
    assert what_changed(old, new) == said


def test_content_is_one_hash_whatever_the_order() -> None:
    one, two = file("a.safetensors", "1"), file("b.safetensors", "2")
    assert origin(one).content == one.sha256
    assert origin(one, two).content == origin(two, one).content != origin(one).content
    assert origin().content is None


def test_local_weights_are_called_and_remembered_by_their_content() -> None:
    local = Origin(path="/srv/m.gguf", contents=(WEIGHTS,))
    assert local.short == f"/srv/m.gguf ({(WEIGHTS.sha256 or '')[:7]})"
    assert local.keys == (("", WEIGHTS.sha256),)
    assert Origin(path="/srv/m.gguf").short == "/srv/m.gguf"
    assert Origin(path="/srv/m.gguf").keys == ()


def test_weights_of_a_repository_are_remembered_by_their_revision_and_their_content() -> None:
    assert origin(WEIGHTS).keys == (("a/b", "1" * 40), ("", WEIGHTS.sha256))
    assert origin().keys == (("a/b", "1" * 40),)
