import pytest

from llmgwd.domain.errors import LlmgwError
from llmgwd.engines import embedded
from llmgwd.engines.presets import PRESETS
from llmgwd.engines.templates import FIELDS, Engine, check_argv, command, find_engine, slots

VALUES = dict.fromkeys(FIELDS, "x") | {"path": "/w/a b.gguf", "port": "20001", "name": "org/chat"}


def test_a_command_line_is_the_template_filled_and_the_models_own_arguments() -> None:
    engine = Engine(("serve", "--model={path}", "{name}", "{host}:{port}", "{{json}}"))
    assert command(engine, ("--threads", "{4}"), VALUES) == [
        "serve",
        "--model=/w/a b.gguf",
        "org/chat",
        "x:20001",
        "{json}",
        "--threads",
        "{4}",
    ]


@pytest.mark.parametrize(
    ("argv", "projector", "expected"),
    [
        pytest.param(("s", "--mmproj", "{projector}", "-v"), "/p", ["s", "--mmproj", "/p", "-v"], id="two words"),
        pytest.param(("s", "--mmproj={projector}", "-v"), "/p", ["s", "--mmproj=/p", "-v"], id="one word"),
        pytest.param(("s", "--mmproj", "{projector}", "-v"), "", ["s", "-v"], id="none, two words"),
        pytest.param(("s", "-v", "--mmproj={projector}", "x"), "", ["s", "-v", "x"], id="none, one word"),
        pytest.param(("s", "see", "{projector}"), "", ["s", "see"], id="none, behind what is no option"),
        pytest.param(("s", "-v", "{{projector}}"), "", ["s", "-v", "{projector}"], id="braces of one's own"),
    ],
)
def test_without_a_projector_the_option_that_names_it_is_left_out(
    argv: tuple[str, ...], projector: str, expected: list[str]
) -> None:
    assert command(Engine(argv), (), VALUES | {"projector": projector}) == expected


def test_the_embedded_engine_is_given_the_projector_that_was_chosen() -> None:
    given, none = (command(PRESETS["llamacpp"], (), VALUES | {"projector": found}) for found in ("/w/p.gguf", ""))
    assert embedded.parse(given[3:]).mmproj == "/w/p.gguf"
    assert "--mmproj" not in none


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("serve", "{port}", "{modle}"), "{modle}"),
        (("serve", "{port}", "{path.parent}"), "{path.parent}"),
        (("serve", "{port}", "{path[0]}"), "{path[0]}"),
        (("serve", "{port}", "{"), "{"),
        (("serve", "{port}", "{}"), "{}"),
        (("serve", "{path}"), "does not say {port}"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_once(argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(LlmgwError) as raised:
        check_argv("engines.x.argv", argv)
    assert says in raised.value.message
    assert "engines.x.argv" in raised.value.message


def test_presets_can_work() -> None:
    for name, engine in PRESETS.items():
        if not engine.is_external:
            check_argv(name, engine.argv)


def test_an_unknown_engine_comes_with_those_there_are() -> None:
    with pytest.raises(LlmgwError, match="there is no engine warp; there are external, llama-server, llamacpp"):
        find_engine("warp", PRESETS)


@pytest.mark.parametrize(
    ("argv", "extra", "wanted"),
    [
        pytest.param(("serve",), (), None, id="nothing tells"),
        pytest.param(("serve", "--parallel", "8"), (), 8, id="two words"),
        pytest.param(("serve",), ("--parallel=8",), 8, id="one word"),
        pytest.param(("serve", "-np", "2"), ("--parallel=3",), 3, id="the model's own argument comes later"),
        pytest.param(("serve", "--max-num-seqs", "64"), (), 64, id="vllm"),
        pytest.param(("serve", "--max-running-requests", "64"), (), 64, id="sglang"),
        pytest.param(("serve", "--parallel", "auto"), (), None, id="no number"),
        pytest.param(("serve", "--parallel"), (), None, id="cut off"),
        pytest.param(("serve", "--threads", "8"), (), None, id="another option"),
    ],
)
def test_slots_are_read_from_the_command_line(
    argv: tuple[str, ...], extra: tuple[str, ...], wanted: int | None
) -> None:
    assert slots(Engine(argv), extra) == wanted
    assert slots(Engine(argv, slots=5), extra) == wanted or 5


def test_the_embedded_engine_has_the_slots_that_its_preset_says() -> None:
    options = embedded.parse(["--model", "m", "--alias", "a", "--port", "1"])
    assert slots(PRESETS["llamacpp"], ()) == options.parallel
