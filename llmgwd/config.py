"""`server.yaml`: read once at start and on SIGHUP, checked whole before any of it counts."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from llmgwd.domain.errors import LlmgwError, unusable
from llmgwd.protocol.states import EventKind, WeightsFormat
from llmgwd.verdict.limits import LimitError, complete

EXTERNAL = "external"
"""The engine of URLs that somebody else runs: nothing is started, and nothing ended."""
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
LONGEST_S = 365 * 86400.0
LARGEST_BYTES = 2**60
YAML_WORDS = {"object": "a mapping", "array": "a list", "str": "text", "int": "a whole number", "null": "nothing"}

Kind = TypeVar("Kind")


class Seconds(float):
    """A duration written as `500ms`, `30s`, `10m`, `2h`."""


class Bytes(int):
    """A size written as `5GiB`."""


class Address:
    """A listening address written as `HOST:PORT`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file whose keys are all known."""


class GatewaySettings(Section, frozen=True):
    listen: Address = Address("127.0.0.1", 8080)
    workers: int = 1
    api_keys_file: Path | None = None
    max_body: Bytes = Bytes(32 * 2**20)
    max_connections: int = 10_000
    max_in_flight: int = 256
    queue: int = 1024
    drain: Seconds = Seconds(30)


class AdminSettings(Section, frozen=True):
    listen: Address = Address("127.0.0.1", 8081)


class WeightsSettings(Section, frozen=True):
    dir: Path | None = None
    keep_revisions: int = 2
    min_free: Bytes = Bytes(5 * 2**30)


class HubSettings(Section, frozen=True):
    endpoint: str = "https://huggingface.co"
    token_file: Path | None = None
    check_every: Seconds = Seconds(3600)


class CanarySettings(Section, frozen=True):
    every: Seconds = Seconds(30)
    min_age: Seconds = Seconds(1800)
    limits: dict[str, float | None] = {}


class WebhookSettings(Section, frozen=True):
    kind: str
    url: str
    events: tuple[str, ...] = ()
    """Empty: all."""


class AdapterSettings(Section, frozen=True):
    """How a command takes LoRA adapters; see `llmgwd.engines.adapters` for what stands in for what."""

    each: tuple[str, ...]
    argv: tuple[str, ...] = ()
    asked_as: str = "{name}"
    fields: dict[str, str] = {}


class EngineSettings(Section, frozen=True):
    """A command that serves weights; see `llmgwd.engines.templates` for what stands in for what.

    `external` has no command; of it only slots and probes are set.
    """

    argv: tuple[str, ...] = ()
    health: str = "/health"
    ready_timeout: Seconds = Seconds(600)
    env: dict[str, str] = {}
    slots: int | None = None
    """Requests that it decodes at once."""
    probe_every: Seconds = Seconds(30)
    probe_timeout: Seconds = Seconds(60)
    weights: str = WeightsFormat.ANY
    """A `WeightsFormat` but `none`."""
    own_name: str = "{name}"
    """The model name that it has to be asked for."""
    lists_itself: bool = False
    """Whether its `/v1/models` lists that name."""
    first_answer: Seconds = Seconds(120)
    stop_grace: Seconds = Seconds(10)
    adapters: AdapterSettings | None = None
    gpus: int = 0
    """GPUs that a replica takes where its model does not say."""


class ScalingSettings(Section, frozen=True):
    """How many replicas; `min` and `max` are the same for now."""

    min: int = 1
    max: int = 1


class DeclaredModel(Section, frozen=True):
    name: str
    path: Path | None = None
    urls: tuple[str, ...] = ()
    """Of what others run, with engine `external`."""
    served_name: str | None = None
    key_file: Path | None = None
    engine: str = "llamacpp"
    engine_args: tuple[str, ...] = ()
    scaling: ScalingSettings = ScalingSettings()
    aliases: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    adapters: dict[str, Path] = {}
    """LoRA adapters by name."""
    description: str = ""
    gpus: int | None = None
    """That each replica has to itself; null: as its engine says."""
    fit_check: bool = True
    """Whether it is started only where it fits."""


class Settings(Section, frozen=True):
    gateway: GatewaySettings = GatewaySettings()
    admin: AdminSettings = AdminSettings()
    weights: WeightsSettings = WeightsSettings()
    hub: HubSettings = HubSettings()
    canary: CanarySettings = CanarySettings()
    notify: tuple[WebhookSettings, ...] = ()
    engines: dict[str, EngineSettings] = {}
    models: tuple[DeclaredModel, ...] = ()


def read_settings(path: Path | None) -> Settings:
    """The settings in the file, or the defaults without one. Raises LlmgwError that names the place and the value."""
    if path is None:
        return Settings()
    try:
        text = path.read_text()
    except OSError as error:
        raise unusable("no_config", f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise unusable("bad_config", f"{path} is not YAML: {error}") from error
    try:
        data = yaml.safe_load(text)
    except Exception as error:
        # Not only YAMLError: a day that is none is a ValueError, `!!bool x` a KeyError, deep nesting a RecursionError.
        raise unusable("bad_config", f"{path} is not YAML: {error}") from error
    try:
        return parse_settings({} if data is None else data)
    except LlmgwError as error:
        raise unusable("bad_config", f"{path}: {error.message}") from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise unusable("bad_config", f"{path} cannot be followed: {error}") from error


def parse_settings(data: object) -> Settings:
    """Checks a parsed file. Raises LlmgwError with the path of what is wrong, as in `models[0].replicas`."""
    _check_text(data, "")
    _check_named(data, ("engines",), EngineSettings)
    _check_named(data, ("canary", "limits"), float | None)
    settings = _converted(data, Settings, "")
    _check(settings)
    return settings


def _converted(data: object, kind: type[Kind], where: str) -> Kind:
    try:
        return msgspec.convert(data, kind, dec_hook=_read_scalar)
    except msgspec.ValidationError as error:
        raise unusable("bad_config", _explain(str(error), data, where)) from error


def _check_text(value: object, where: str) -> None:
    """Refuses text that no file name, argument or address can hold: every system call would fail on it later."""
    if isinstance(value, str) and re.search("[\\0\ud800-\udfff]", value):
        raise unusable(
            "bad_config", f"{where or 'the file'} is {value!r}: expected text without NUL or half characters"
        )
    if isinstance(value, Mapping):
        for key, each in value.items():
            path = f"{where}.{key}" if where else str(key)
            _check_text(key, repr(path)[1:-1])
            _check_text(each, repr(path)[1:-1])
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_text(each, f"{where}[{index}]")


def _check_named(data: object, where: tuple[str, ...], kind: Any) -> None:
    """Checks a mapping's entries one by one: msgspec's own error would not say under which name."""
    found = _value_at(data, ".".join(where))
    for name, value in found.items() if isinstance(found, Mapping) else ():
        _converted(value, kind, ".".join((*where, str(name))))


def _read_scalar(kind: type, value: Any) -> Any:
    if kind is Seconds:
        seconds = _measured(value, DURATION_UNITS, "a duration such as 500ms, 30s, 10m or 2h")
        if seconds > LONGEST_S:
            raise ValueError("expected at most 365d")
        return Seconds(seconds)
    if kind is Bytes:
        size = _measured(value, SIZE_UNITS, "a size such as 512MiB or 5GiB")
        if size > LARGEST_BYTES:
            raise ValueError("expected at most 1048576TiB")
        return Bytes(int(size))
    if kind is Address:
        return _read_address(value)
    if not isinstance(value, str) or not value:
        raise ValueError("expected a path")
    return Path(value).expanduser()


def _measured(value: object, units: Mapping[str, float], wanted: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"expected {wanted}")
    return float(match[1]) * units[match[2]]


def _read_address(value: object) -> Address:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[^:\s]+):(\d+)", value) if isinstance(value, str) else None
    if match is None or int(match[2]) > 65535:
        raise ValueError("expected HOST:PORT, as in 127.0.0.1:8080")
    return Address(match[1].strip("[]"), int(match[2]))


def _explain(problem: str, data: object, where: str) -> str:
    """msgspec's `… - at `$.a[0].b`` with the path in front and the value that stands there."""
    match = re.fullmatch(r"(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>.*)`)?", problem, re.DOTALL)
    assert match is not None
    path, what = match["path"] or "", match["what"]
    full = ".".join(each for each in (where, path) if each)
    for json_word, word in YAML_WORDS.items():
        what = what.replace(f"`{json_word}`", word)
    unknown_key = re.fullmatch(r"Object contains unknown field `(.*)`", what)
    if unknown_key:
        return f"{full + '.' if full else ''}{unknown_key[1]} is not a setting of llmgw"
    missing_key = re.fullmatch(r"Object missing required field `(.*)`", what)
    if missing_key:
        return f"{full + '.' if full else ''}{missing_key[1]} is missing"
    return f"{full or 'the file'} is {_value_at(data, path)!r}: {what[0].lower()}{what[1:]}"


def _value_at(data: object, path: str) -> object:
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(data, Mapping) and step in data:
            data = data[step]
        elif isinstance(data, list) and step.isdigit() and int(step) < len(data):
            data = data[int(step)]
        else:
            return None
    return data


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_external(engine: EngineSettings) -> None:
    set_here = EngineSettings(slots=engine.slots, probe_every=engine.probe_every, probe_timeout=engine.probe_timeout)
    for field in engine.__struct_fields__:
        if getattr(engine, field) != getattr(set_here, field):
            why = "nothing is started for it; only slots, probe_every and probe_timeout are set"
            raise unusable("bad_config", f"engines.{EXTERNAL}.{field} is {getattr(engine, field)!r}: {why}")


def _check(settings: Settings) -> None:
    positive: dict[str, float] = {
        "gateway.workers": settings.gateway.workers,
        "gateway.max_body": settings.gateway.max_body,
        "gateway.max_connections": settings.gateway.max_connections,
        "gateway.max_in_flight": settings.gateway.max_in_flight,
        "weights.keep_revisions": settings.weights.keep_revisions,
        "canary.every": settings.canary.every,
        "hub.check_every": settings.hub.check_every,
    }
    for name, engine in settings.engines.items():
        positive[f"engines.{name}.probe_every"] = engine.probe_every
        positive[f"engines.{name}.probe_timeout"] = engine.probe_timeout
        positive[f"engines.{name}.first_answer"] = engine.first_answer
        positive[f"engines.{name}.stop_grace"] = engine.stop_grace
    for index, model in enumerate(settings.models):
        positive[f"models[{index}].scaling.min"] = model.scaling.min
        if model.scaling.max != model.scaling.min:
            raise unusable(
                "bad_config",
                f"models[{index}].scaling.max is {model.scaling.max}: expected {model.scaling.min}, the same as min; "
                "a number of replicas that follows the load is not supported",
            )
        if model.path is None and not model.urls:
            raise unusable("bad_config", f"models[{index}].path is missing")
        adapters = [(f"adapters.{name}", path) for name, path in model.adapters.items()]
        for key, path in (("path", model.path), ("key_file", model.key_file), *adapters):
            if path is not None and not path.is_absolute():
                raise unusable("bad_config", f"models[{index}].{key} is {str(path)!r}: expected an absolute path")
    for where, number in positive.items():
        if not 0 < number < math.inf:
            raise unusable("bad_config", f"{where} is {number:g}: expected more than 0")
    counts = {f"engines.{name}.gpus": engine.gpus for name, engine in settings.engines.items()}
    counts |= {f"models[{index}].gpus": model.gpus or 0 for index, model in enumerate(settings.models)}
    for where, count in counts.items():
        if count < 0:
            raise unusable("bad_config", f"{where} is {count}: expected 0 or more")
    if settings.gateway.queue < 0:
        raise unusable("bad_config", f"gateway.queue is {settings.gateway.queue}: expected 0 or more")
    try:
        complete(settings.canary.limits)
    except LimitError as error:
        raise unusable("bad_config", f"canary.limits: {error}") from error
    if "@" in settings.hub.endpoint.partition("://")[2].partition("/")[0]:
        raise unusable(
            "bad_config",
            "hub.endpoint has a user or password in it, which messages and logs would show: "
            "expected the address alone, and the token in hub.token_file",
        )
    if not _is_web_address(settings.hub.endpoint):
        raise unusable("bad_config", f"hub.endpoint is {settings.hub.endpoint!r}: expected http://… or https://…")
    _check_notify(settings.notify)
    for name, engine in settings.engines.items():
        _check_engine(name, engine)


def _check_notify(sinks: tuple[WebhookSettings, ...]) -> None:
    for index, sink in enumerate(sinks):
        if sink.kind != "webhook":
            raise unusable("bad_config", f"notify[{index}].kind is {sink.kind!r}: expected webhook")
        if not _is_web_address(sink.url):
            raise unusable("bad_config", f"notify[{index}].url is {sink.url!r}: expected http://… or https://…")
        for each in sink.events:
            if each not in list(EventKind):
                raise unusable(
                    "bad_config",
                    f"notify[{index}].events has {each!r}, which never happens: expected some of "
                    + ", ".join(EventKind),
                )


def _check_engine(name: str, engine: EngineSettings) -> None:
    if name == EXTERNAL:
        _check_external(engine)
        return
    if not engine.argv:
        raise unusable("bad_config", f"engines.{name}.argv is empty: expected the program and its arguments")
    if not engine.own_name or "{" in engine.own_name.replace("{name}", ""):
        raise unusable("bad_config", f"engines.{name}.own_name is {engine.own_name!r}: expected a name, or {{name}}")
    if engine.weights not in (WeightsFormat.GGUF, WeightsFormat.FOLDER, WeightsFormat.ANY):
        raise unusable("bad_config", f"engines.{name}.weights is {engine.weights!r}: expected gguf, folder or any")
    if engine.slots is not None and engine.slots < 1:
        raise unusable("bad_config", f"engines.{name}.slots is {engine.slots}: expected 1 or more")
    for key, value in engine.env.items():
        if not key or "=" in key or "\0" in key + value:
            why = "no variable can be called so or hold that"
            raise unusable("bad_config", f"engines.{name}.env has {key!r}: {why}")
