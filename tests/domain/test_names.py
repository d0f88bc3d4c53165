"""What models may be called: one rule, for everything that clients can ask for."""

import pytest

from llmgwd.domain.catalog import Adapter, Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.names import asked_for, check_new_name, fallbacks_of, names
from llmgwd.protocol.exit_status import ExitStatus

HERE = Origin(path="/x.gguf")


@pytest.mark.parametrize(
    "name",
    ["chat", "org/model", "a/b/c", "gpt-4.1", "qwen2.5:7b", "a@b", "a+b_c", "4", "a..b", "x" * 120],
)
def test_names_that_can_be_given(name: str) -> None:
    check_new_name(name, (), (), {"taken"})
    check_new_name("x.y", (name,), (), {"taken"})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("../etc", id="a path"),
        pytest.param("a/../b", id="a path inside"),
        pytest.param("a/./b", id="the same folder"),
        pytest.param("/srv/model.gguf", id="an absolute path"),
        pytest.param("a//b", id="an empty part"),
        pytest.param("a/", id="a slash at the end"),
        pytest.param(".hidden", id="a dot in front"),
        pytest.param("-x", id="an option"),
        pytest.param("a b", id="a space"),
        pytest.param("a\nb", id="a line end"),
        pytest.param("a\0b", id="a zero byte"),
        pytest.param("a\\b", id="a backslash"),
        pytest.param("modèle", id="an accent"),
        pytest.param("模型", id="another script"),
        pytest.param("x" * 121, id="121 characters"),
        pytest.param("x" * 200, id="200 characters"),
    ],
)
def test_names_that_cannot_be_given(name: str) -> None:
    for first, aliases in ((name, ()), ("x", (name,))):
        with pytest.raises(LlmgwError, match=r"cannot be a model's name: 1 to 120 letters") as raised:
            check_new_name(first, aliases, (), {"taken"})
        assert raised.value.status is ExitStatus.USAGE
        assert len(raised.value.message) < 400


@pytest.mark.parametrize(
    ("name", "aliases", "adapters", "status"),
    [
        pytest.param("chat-canary", (), (), ExitStatus.USAGE, id="reserved"),
        pytest.param("x", ("y-canary",), (), ExitStatus.USAGE, id="alias reserved"),
        pytest.param("x", (), ("y-canary",), ExitStatus.USAGE, id="adapter reserved"),
        pytest.param("x", ("x",), (), ExitStatus.USAGE, id="alias is the name"),
        pytest.param("x", ("y", "y"), (), ExitStatus.USAGE, id="alias twice"),
        pytest.param("x", (), ("y", "y"), ExitStatus.USAGE, id="adapter twice"),
        pytest.param("x", ("x:legal",), ("legal",), ExitStatus.USAGE, id="alias is the adapter's name"),
        pytest.param("x", (), ("a:b",), ExitStatus.USAGE, id="adapter with a colon"),
        pytest.param("x", (), ("a/b",), ExitStatus.USAGE, id="adapter with a slash"),
        pytest.param("x", (), ("a" * 65,), ExitStatus.USAGE, id="adapter too long"),
        pytest.param("taken", (), (), ExitStatus.REFUSED, id="taken"),
        pytest.param("x", ("taken",), (), ExitStatus.REFUSED, id="alias taken"),
        pytest.param("chat:legal", (), (), ExitStatus.REFUSED, id="name is somebody's adapter"),
        pytest.param("one:two", (), ("three",), ExitStatus.REFUSED, id="adapter is somebody's name"),
    ],
)
def test_names_that_are_not_free(
    name: str, aliases: tuple[str, ...], adapters: tuple[str, ...], status: ExitStatus
) -> None:
    with pytest.raises(LlmgwError) as raised:
        check_new_name(name, aliases, adapters, {"taken", "chat:legal", "one:two:three"})
    assert raised.value.status is status


def test_an_adapter_is_asked_for_under_each_of_its_models_names() -> None:
    assert asked_for("chat", ("gpt",), ("legal", "sql")) == (
        "chat",
        "gpt",
        "chat:legal",
        "gpt:legal",
        "chat:sql",
        "gpt:sql",
    )


def test_names_and_aliases_are_one_set() -> None:
    adapted = Model("chat", HERE, aliases=("gpt",), adapters=(Adapter("legal", HERE),))
    assert names([adapted, Model("b", HERE)]) == {"chat", "gpt", "chat:legal", "gpt:legal", "b"}


CATALOG = [
    Model("base", HERE, aliases=("b",)),
    Model("small", HERE, fallbacks=("chat",)),
    Model("base-canary", HERE, canary_of="base"),
]


def test_fallbacks_are_models_by_name_or_alias_in_their_order() -> None:
    assert fallbacks_of("chat", ("gpt",), ("small", "b"), CATALOG) == ("small", "base")


@pytest.mark.parametrize(
    ("wanted", "status", "says"),
    [
        pytest.param(("nobody",), ExitStatus.UNKNOWN, "there is no model nobody", id="unknown"),
        pytest.param(("base-canary",), ExitStatus.UNKNOWN, "there is no model base-canary", id="a canary"),
        pytest.param(("chat",), ExitStatus.USAGE, "cannot fall back on itself", id="itself"),
        pytest.param(("gpt",), ExitStatus.USAGE, "cannot fall back on itself", id="its alias"),
        pytest.param(("base", "b"), ExitStatus.USAGE, "base is given twice", id="twice"),
    ],
)
def test_fallbacks_that_cannot_be(wanted: tuple[str, ...], status: ExitStatus, says: str) -> None:
    with pytest.raises(LlmgwError, match=says) as raised:
        fallbacks_of("chat", ("gpt",), wanted, CATALOG)
    assert raised.value.status is status
