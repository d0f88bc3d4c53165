from pathlib import Path
from typing import Any

import pytest

from llmgwd.config import Address, Settings, parse_settings, read_settings
from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol.exit_status import ExitStatus


def test_without_a_file_every_setting_has_its_default() -> None:
    settings = read_settings(None)
    assert settings == parse_settings({}) == Settings()
    assert str(settings.gateway.listen) == "127.0.0.1:8080"
    assert str(settings.admin.listen) == "127.0.0.1:8081"
    assert settings.weights.min_free == 5 * 2**30
    assert settings.canary.every == 30.0


def test_durations_sizes_addresses_and_paths_are_read() -> None:
    settings = parse_settings(
        {
            "gateway": {"listen": "[::1]:9000", "max_body": "1.5KiB", "drain": "500ms"},
            "canary": {"every": "2h", "limits": {"ttft": 1.5}},
            "weights": {"dir": "/srv/weights"},
        }
    )
    assert settings.gateway.listen == Address("::1", 9000)
    assert settings.gateway.max_body == 1536
    assert settings.gateway.drain == 0.5
    assert settings.canary.every == 7200.0
    assert settings.canary.limits == {"ttft": 1.5}
    assert settings.weights.dir == Path("/srv/weights")


MODEL = {"name": "a", "path": "/a.gguf"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gateway": {"listn": "x"}}, "gateway.listn is not a setting of llmgw"),
        ({"foo": 1}, "foo is not a setting of llmgw"),
        ([], "the file is []: expected a mapping, got a list"),
        ({"gateway": {"listen": "x"}}, "gateway.listen is 'x': expected HOST:PORT, as in 127.0.0.1:8080"),
        ({"gateway": {"listen": "a:99999"}}, "gateway.listen is 'a:99999': expected HOST:PORT, as in 127.0.0.1:8080"),
        ({"gateway": {"workers": 0}}, "gateway.workers is 0: expected more than 0"),
        ({"gateway": {"workers": "two"}}, "gateway.workers is 'two': expected a whole number, got text"),
        ({"gateway": {"max_in_flight": 0}}, "gateway.max_in_flight is 0: expected more than 0"),
        ({"gateway": {"max_connections": -1}}, "gateway.max_connections is -1: expected more than 0"),
        ({"gateway": {"queue": -1}}, "gateway.queue is -1: expected 0 or more"),
        ({"engines": {"e": {"argv": ["x", "{port}"], "gpus": -1}}}, "engines.e.gpus is -1: expected 0 or more"),
        ({"models": [{"name": "a", "path": "/a", "gpus": -2}]}, "models[0].gpus is -2: expected 0 or more"),
        ({"gateway": {"queue": "1KiB"}}, "gateway.queue is '1KiB': expected a whole number, got text"),
        ({"canary": {"every": "30"}}, "canary.every is '30': expected a duration such as 500ms, 30s, 10m or 2h"),
        ({"canary": {"every": "0s"}}, "canary.every is 0: expected more than 0"),
        ({"weights": {"min_free": 5}}, "weights.min_free is 5: expected a size such as 512MiB or 5GiB"),
        ({"weights": {"keep_revisions": 0}}, "weights.keep_revisions is 0: expected more than 0"),
        (
            {"canary": {"limits": {"tfft": 2}}},
            "canary.limits: there is no limit 'tfft'; expected one of bad_answers, ttft, speed, length_limited, "
            "degenerate, rejected",
        ),
        (
            {"canary": {"limits": {"ttft": -1}}},
            "canary.limits: limit ttft is -1; expected 0.1 to 100 (times stable's), or `off`",
        ),
        ({"models": [{"name": "a"}]}, "models[0].path is missing"),
        (
            {"models": [{"name": "a", "urls": ["http://x"], "key_file": "k"}]},
            "models[0].key_file is 'k': expected an absolute path",
        ),
        (
            {"engines": {"external": {"argv": ["x", "{port}"]}}},
            "engines.external.argv is ('x', '{port}'): nothing is started for it; "
            "only slots, probe_every and probe_timeout are set",
        ),
        (
            {"engines": {"external": {"stop_grace": "1s"}}},
            "engines.external.stop_grace is 1.0: nothing is started for it; "
            "only slots, probe_every and probe_timeout are set",
        ),
        (
            {"engines": {"x": {"argv": ["x"], "own_name": "{path}"}}},
            "engines.x.own_name is '{path}': expected a name, or {name}",
        ),
        (
            {"engines": {"x": {"argv": ["x"], "weights": "none"}}},
            "engines.x.weights is 'none': expected gguf, folder or any",
        ),
        (
            {"engines": {"x": {"argv": ["x"], "weights": "onnx"}}},
            "engines.x.weights is 'onnx': expected gguf, folder or any",
        ),
        (
            {"engines": {"x": {"argv": ["x"], "stop_grace": "0s"}}},
            "engines.x.stop_grace is 0: expected more than 0",
        ),
        (
            {"models": [MODEL, {**MODEL, "scaling": {"max": "x"}}]},
            "models[1].scaling.max is 'x': expected a whole number, got text",
        ),
        (
            {"models": [{**MODEL, "scaling": {"max": 3}}]},
            "models[0].scaling.max is 3: expected 1, the same as min; "
            "a number of replicas that follows the load is not supported",
        ),
        (
            {"models": [{**MODEL, "scaling": {"min": 0, "max": 0}}]},
            "models[0].scaling.min is 0: expected more than 0",
        ),
        ({"models": [{"name": "a", "path": "a.gguf"}]}, "models[0].path is 'a.gguf': expected an absolute path"),
        ({"engines": {"x": {"argv": "foo"}}}, "engines.x.argv is 'foo': expected a list, got text"),
        ({"engines": {"x": {"argv": []}}}, "engines.x.argv is empty: expected the program and its arguments"),
        ({"engines": {"x": {"argv": ["a"], "health": 1}}}, "engines.x.health is 1: expected text, got a whole number"),
        (
            {"canary": {"limits": {"ttft": float("nan")}}},
            "canary.limits: limit ttft is nan; expected 0.1 to 100 (times stable's), or `off`",
        ),
        (
            {"notify": [{"kind": "webhook", "url": "http://x:99999"}]},
            "notify[0].url is 'http://x:99999': expected http://… or https://…",
        ),
        ({"engines": {"x": {"argv": ["a"], "slots": 0}}}, "engines.x.slots is 0: expected 1 or more"),
        ({"engines": {"x": {"argv": ["a"], "adapters": {}}}}, "engines.x.adapters.each is missing"),
        (
            {"models": [{"name": "a", "path": "/x", "adapters": {"l": "x.gguf"}}]},
            "models[0].adapters.l is 'x.gguf': expected an absolute path",
        ),
        (
            {"engines": {"x": {"argv": ["a"], "env": {"A=B": "c"}}}},
            "engines.x.env has 'A=B': no variable can be called so or hold that",
        ),
        (
            {"hub": {"endpoint": "https://user:s3cret@hub.test/x"}},
            "hub.endpoint has a user or password in it, which messages and logs would show: "
            "expected the address alone, and the token in hub.token_file",
        ),
        ({"hub": {"endpoint": "http://["}}, "hub.endpoint is 'http://[': expected http://… or https://…"),
        (
            {"hub": {"endpoint": "https://hub.test:99999"}},
            "hub.endpoint is 'https://hub.test:99999': expected http://… or https://…",
        ),
        (
            {"models": [{**MODEL, "engine_args": ["-x", "a\0b"]}]},
            "models[0].engine_args[1] is 'a\\x00b': expected text without NUL or half characters",
        ),
        (
            {"models": [{"name": "a", "path": "/a\0"}]},
            "models[0].path is '/a\\x00': expected text without NUL or half characters",
        ),
        (
            {"gateway": {"api_keys_file": "/\ud800"}},
            "gateway.api_keys_file is '/\\ud800': expected text without NUL or half characters",
        ),
        (
            {"engines": {"a\0": {"argv": ["x"]}}},
            "engines.a\\x00 is 'a\\x00': expected text without NUL or half characters",
        ),
        ({"gateway": {"drain": "366d"}}, "gateway.drain is '366d': expected at most 365d"),
        ({"canary": {"every": "9" * 400 + "h"}}, f"canary.every is '{'9' * 400}h': expected at most 365d"),
        (
            {"weights": {"min_free": "9" * 400 + "B"}},
            f"weights.min_free is '{'9' * 400}B': expected at most 1048576TiB",
        ),
        ({"notify": [{"kind": "fax", "url": "x"}]}, "notify[0].kind is 'fax': expected webhook"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_value(data: Any, message: str) -> None:
    with pytest.raises(LlmgwError) as raised:
        parse_settings(data)
    assert raised.value.message == message
    assert raised.value.status is ExitStatus.USAGE


def test_a_file_that_is_no_yaml_or_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(LlmgwError, match=r"no\.yaml cannot be read: No such file"):
        read_settings(tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(LlmgwError, match=r"bad\.yaml is not YAML"):
        read_settings(tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert read_settings(tmp_path / "empty.yaml") == Settings()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("hub: 2020-99-99", id="a day that is none"),
        pytest.param("gateway: {workers: " + "9" * 5000 + "}", id="a number of 5000 digits"),
        pytest.param("gateway: {workers: -" + "9" * 400 + "}", id="a number no float can have"),
        pytest.param("a: " + "[" * 2000 + "]" * 2000, id="nested without end"),
        pytest.param("a: !!bool perhaps", id="a tag that does not fit"),
        pytest.param("? [a]\n: b", id="a list for a key"),
        pytest.param("1: 2", id="a number for a key"),
        pytest.param("a: &x [*x]", id="in itself"),
    ],
)
def test_a_file_that_makes_its_reader_stumble_is_refused_in_words(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(text)
    with pytest.raises(LlmgwError, match=r"server\.yaml") as raised:
        read_settings(path)
    assert raised.value.code == "bad_config"
