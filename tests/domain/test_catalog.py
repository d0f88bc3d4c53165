import msgspec
import pytest

from llmgwd.domain.catalog import Adapter, Model, Origin, candidate, moved, moved_back, no_such_model, without_fallback
from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol.exit_status import ExitStatus

OLD = Origin(repo="org/repo", revision="a" * 40, files=("x.gguf",), size_bytes=10)
NEW = Origin(repo="org/repo", revision="b" * 40, files=("x.gguf",), size_bytes=11)
CHAT = Model(
    name="chat",
    origin=OLD,
    engine="vllm",
    engine_args=("--max-model-len", "4096"),
    replicas=3,
    aliases=("gpt",),
    fallbacks=("base",),
    adapters=(Adapter("legal", OLD),),
    description="for everyone",
    previous=Origin(path="/old.gguf"),
)


def test_the_candidate_is_the_model_in_everything_but_its_weights() -> None:
    assert candidate(CHAT, NEW, None) == Model(
        name="chat-canary",
        origin=NEW,
        engine="vllm",
        engine_args=("--max-model-len", "4096"),
        replicas=1,
        aliases=(),
        fallbacks=(),
        adapters=(),
        description="canary of chat at bbbbbbb",
        canary_of="chat",
    )
    assert candidate(CHAT, NEW, ("--other",)).engine_args == ("--other",)


def test_the_candidate_answers_to_the_models_name() -> None:
    assert candidate(CHAT, NEW, None).served_name == "chat"


def test_moving_keeps_what_was_left_and_moving_back_returns_to_it() -> None:
    there = moved(CHAT, NEW, ("--other",))
    assert (there.origin, there.previous, there.engine_args) == (NEW, OLD, ("--other",))
    back = moved_back(there)
    assert (back.origin, back.previous, back.engine_args) == (OLD, NEW, CHAT.engine_args)
    assert (back.aliases, back.replicas) == (CHAT.aliases, CHAT.replicas)
    assert (back.fallbacks, back.adapters) == (CHAT.fallbacks, CHAT.adapters)


def test_gpus_go_with_what_was_asked_for_and_come_back() -> None:
    one = msgspec.structs.replace(CHAT, gpus=1, fit_check=False)
    assert candidate(one, NEW, None).gpus == 1
    there = moved(one, NEW, (), gpus=candidate(one, NEW, None, gpus=4).gpus)
    assert (there.gpus, moved_back(there).gpus) == (4, 1)


def test_who_was_not_to_be_checked_is_checked_with_other_weights() -> None:
    unchecked = msgspec.structs.replace(CHAT, fit_check=False)
    assert candidate(unchecked, NEW, None).fit_check
    assert moved(unchecked, NEW, ()).fit_check
    assert not moved_back(moved(unchecked, NEW, ()), fit_check=False).fit_check


def test_there_is_no_way_back_without_previous_weights() -> None:
    with pytest.raises(LlmgwError, match="no previous weights") as raised:
        moved_back(Model(name="chat", origin=OLD))
    assert raised.value.status is ExitStatus.REFUSED


def test_a_model_that_is_gone_is_nobodys_fallback_any_more() -> None:
    two = Model(name="two", origin=OLD, fallbacks=("other", "base", "third"))
    assert without_fallback([CHAT, two, Model(name="three", origin=OLD)], "base") == [
        msgspec.structs.replace(CHAT, fallbacks=()),
        msgspec.structs.replace(two, fallbacks=("other", "third")),
    ]


def test_an_unknown_model_comes_with_the_nearest_name() -> None:
    error = no_such_model("chta", [CHAT])
    assert (error.message, error.status) == ("there is no model chta; did you mean chat?", ExitStatus.UNKNOWN)
    assert no_such_model("zzz", [CHAT]).hint == "models here: chat"
