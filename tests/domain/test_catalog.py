import msgspec
import pytest

from llmgwd.domain.catalog import Model, Origin, candidate, check_new_name, moved, moved_back, no_such_model
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


@pytest.mark.parametrize(
    ("name", "aliases", "status"),
    [
        pytest.param("chat-canary", (), ExitStatus.USAGE, id="reserved"),
        pytest.param("x", ("y-canary",), ExitStatus.USAGE, id="alias reserved"),
        pytest.param("", (), ExitStatus.USAGE, id="empty"),
        pytest.param("../etc", (), ExitStatus.USAGE, id="a path"),
        pytest.param("a/../b", (), ExitStatus.USAGE, id="a path inside"),
        pytest.param("a b", (), ExitStatus.USAGE, id="a space"),
        pytest.param("x" * 121, (), ExitStatus.USAGE, id="too long"),
        pytest.param("x", ("x",), ExitStatus.USAGE, id="alias is the name"),
        pytest.param("x", ("y", "y"), ExitStatus.USAGE, id="alias twice"),
        pytest.param("taken", (), ExitStatus.REFUSED, id="taken"),
        pytest.param("x", ("taken",), ExitStatus.REFUSED, id="alias taken"),
    ],
)
def test_names_that_cannot_be_given(name: str, aliases: tuple[str, ...], status: ExitStatus) -> None:
    with pytest.raises(LlmgwError) as raised:
        check_new_name(name, aliases, {"taken"})
    assert raised.value.status is status


@pytest.mark.parametrize("name", ["chat", "org/model", "gpt-4.1:latest", "a@b", "x" * 120])
def test_names_that_can_be_given(name: str) -> None:
    check_new_name(name, (), {"taken"})


def test_an_unknown_model_comes_with_the_nearest_name() -> None:
    error = no_such_model("chta", [CHAT])
    assert (error.message, error.status) == ("there is no model chta; did you mean chat?", ExitStatus.UNKNOWN)
    assert no_such_model("zzz", [CHAT]).hint == "models here: chat"
