"""What the gateway has to reach, and whether it did."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.gateway.results import Results

RSS_LIMIT_MB = 150.0
_FLAT_RATIO = 1.05
_FLAT_SLACK_MB = 2.0


@dataclass(frozen=True)
class Verdict:
    """One target. `value` is None, and `is_met` too, when this run did not measure it."""

    figure: str
    limit: str
    value: float | None
    is_met: bool | None


@dataclass(frozen=True)
class _Target:
    figure: str
    value: Callable[[Results], float | None]
    limit: float
    is_floor: bool = False


def judge(results: Results, wide: str) -> list[Verdict]:
    """All targets by these results; `wide` names the llmgw whose throughput counts."""
    return [_verdict(target, results) for target in _targets(wide)]


def is_missed(verdicts: list[Verdict]) -> bool:
    return any(verdict.is_met is False for verdict in verdicts)


def _targets(wide: str) -> list[_Target]:
    def ratio(base: str, figure: str, name: str, own: str = "llmgw") -> Callable[[Results], float | None]:
        return lambda results: results.ratio(own, base, figure, name)

    def total(figure: str, name: str) -> Callable[[Results], float | None]:
        return lambda results: results.total("llmgw", figure, name)

    return [
        _Target("CPU per request ÷ vllm-router", ratio("vllm-router", "busy", "cpu_us_per_request"), 0.65),
        _Target("CPU per chunk ÷ vllm-router", ratio("vllm-router", "streams", "cpu_us_per_chunk"), 0.9),
        _Target("CPU per chunk ÷ nginx", ratio("nginx", "streams", "cpu_us_per_chunk"), 1.4),
        _Target(f"requests/s of {wide} ÷ vllm-router", ratio("vllm-router", "busy", "requests_per_s", wide), 1.3, True),
        _Target("added p99 at the steady rate, ms", lambda results: results.added("llmgw", "paced", "p99_ms"), 3.0),
        _Target("errors of plain requests", _errors, 0),
        _Target("streams lost in the crowd", total("crowd", "lost"), 0),
        _Target("streams stalled in the crowd", _stalled, 0),
        _Target("unasked usage chunks", total("crowd", "unasked_usage"), 0),
        _Target("RSS with the crowd, MB", lambda results: results.median("llmgw", "crowd", "rss_mb"), RSS_LIMIT_MB),
        _Target("streams lost in churn", total("churn", "lost"), 0),
        _Target("RSS growth in churn beyond 5 % + 2 MB, MB", _growth_mb, 0),
    ]


def _verdict(target: _Target, results: Results) -> Verdict:
    value = target.value(results)
    sign = "≥" if target.is_floor else "≤"
    met = None if value is None else value >= target.limit if target.is_floor else value <= target.limit
    return Verdict(target.figure, f"{sign} {target.limit:g}", value, met)


def _stalled(results: Results) -> float | None:
    """The median over rounds: another process on the machine can hold up any one of them."""
    return results.median("llmgw", "crowd", "stalled")


def _errors(results: Results) -> float | None:
    busy, paced = results.total("llmgw", "busy", "errors"), results.total("llmgw", "paced", "errors")
    return None if busy is None or paced is None else busy + paced


def _growth_mb(results: Results) -> float | None:
    """How far the late peak is above what counts as flat; zero when it is not."""
    early, late = results.median("llmgw", "churn", "early_rss_mb"), results.median("llmgw", "churn", "late_rss_mb")
    return None if early is None or late is None else max(0.0, late - early * _FLAT_RATIO - _FLAT_SLACK_MB)
