"""Adapters on the command line and in requests, as an engine's template says."""

from pathlib import Path

import msgspec
import pytest

from llmgwd.domain.catalog import Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.engines.adapters import AdapterOnDisk, adapter_routes, adapter_words, check_takes_adapters, check_template
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.replica import ReplicaSpec
from llmgwd.engines.templates import AdapterTemplate, Engine, command
from llmgwd.protocol.link import AdapterRoute

TWO = (AdapterOnDisk("legal", Path("/l.gguf")), AdapterOnDisk("sql", Path("/s.gguf")))
BY_NAME = AdapterTemplate(
    argv=("--enable-lora", "--lora-modules"), each=("{name}:{adapter}={path}",), asked_as="{name}:{adapter}"
)


def test_words_stand_between_the_engines_and_the_models_own() -> None:
    engine = Engine(("serve", "--port", "{port}"), adapters=BY_NAME)
    words = adapter_words(engine, "chat", TWO)
    assert command(engine, ("--own",), {"port": "1", "projector": ""}, words) == [
        *("serve", "--port", "1"),
        *("--enable-lora", "--lora-modules", "chat:legal=/l.gguf", "chat:sql=/s.gguf"),
        "--own",
    ]


def test_without_adapters_nothing_is_added() -> None:
    assert adapter_words(Engine(("serve",), adapters=BY_NAME), "chat", ()) == []
    assert adapter_routes(Engine(("serve",), adapters=BY_NAME), "chat", ()) == ()


def test_the_embedded_engine_is_asked_by_their_order() -> None:
    engine = PRESETS["llamacpp"]
    assert adapter_words(engine, "chat", TWO) == ["--lora", "/l.gguf", "--lora", "/s.gguf"]
    assert adapter_routes(engine, "chat", TWO) == (
        AdapterRoute("legal", "chat", (("lora", '[{"id":0,"scale":1.0}]'),)),
        AdapterRoute("sql", "chat", (("lora", '[{"id":1,"scale":1.0}]'),)),
    )


def test_a_name_of_its_own_is_asked_for() -> None:
    routes = adapter_routes(Engine(("serve",), adapters=BY_NAME), "org/chat", TWO)
    assert routes == (AdapterRoute("legal", "org/chat:legal"), AdapterRoute("sql", "org/chat:sql"))


def test_replicas_with_other_adapters_do_not_run_alike() -> None:
    engine = Engine(("serve",), adapters=BY_NAME)

    def spec(*adapters: AdapterOnDisk, engine: Engine = engine) -> ReplicaSpec:
        return ReplicaSpec("chat", "chat", Origin(path="/w"), Path("/w"), engine, (), adapters=adapters)

    assert spec(*TWO).runs_like(spec(*TWO))
    assert not spec(*TWO).runs_like(spec())
    assert not spec(*TWO).runs_like(spec(TWO[0]))
    # What was started before the engine took any is still as good for a model that has none.
    assert spec().runs_like(spec(engine=Engine(("serve",))))


def test_an_engine_that_takes_none_is_said_so() -> None:
    engines = {"a": Engine(("a",)), "b": Engine(("b",), adapters=BY_NAME)}
    check_takes_adapters("b", engines)
    with pytest.raises(LlmgwError, match="the engine a takes no adapters; there are b, which do"):
        check_takes_adapters("a", engines)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"each": ("--lora", "{file}")}, r"each is '\{file\}'", id="unknown field"),
        pytest.param({"each": ("--lora",)}, r"each does not say \{path\}", id="no path"),
        pytest.param({"argv": ("{path}",)}, "argv is .*nothing in braces", id="a field where there is none"),
        pytest.param({"asked_as": "{path}"}, "asked_as is", id="a path as a name"),
        pytest.param({"fields": {"lora": "{{"}}, r"fields.lora is .*expected JSON", id="no JSON"),
        pytest.param({"fields": {"lora": "{adapter}x"}}, "expected JSON", id="text without quotes"),
        pytest.param({"fields": {"model": "1"}}, "expected a member's name other than model", id="the model's name"),
        pytest.param({"fields": {'a"b': "1"}}, "expected a member's name", id="a quote"),
    ],
)
def test_a_template_that_cannot_work_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(LlmgwError, match=rf"engines\.x\.adapters.*{says}|{says}"):
        check_template("engines.x.adapters", msgspec.structs.replace(BY_NAME, **changes))


@pytest.mark.parametrize("name", [name for name, engine in PRESETS.items() if engine.adapters is not None])
def test_presets_pass_their_own_check(name: str) -> None:
    template = PRESETS[name].adapters
    assert template is not None
    check_template(name, template)
