"""The verdict in a sentence."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from llmgwd.verdict.counts import MOST_PER_KEY
from llmgwd.verdict.decision import Decision, State, Wait
from llmgwd.verdict.evidence import SHARES, WARM_UP, Evidence
from llmgwd.verdict.figures import Need
from llmgwd.verdict.limits import Metric, limit_of, written
from llmgwd.verdict.load import figures as load_figures
from llmgwd.verdict.metric_figures import ABSENT, OFF, MetricFigures

WORDS: Mapping[Metric, str] = {
    Metric.BAD_ANSWERS: "bad answers",
    Metric.LENGTH_LIMITED: "answers cut at the length limit",
    Metric.DEGENERATE: "degenerate answers",
    Metric.REJECTED: "rejected requests",
    Metric.TTFT: "median time to first token",
    Metric.TTFT_P95: "95th percentile of the time to first token",
    Metric.SPEED: "median output speed",
}
MANY = 100
"""Canary requests whose times could have been judged, after which a metric that never showed is told of."""
_WERE: Mapping[Metric, str] = {
    Metric.BAD_ANSWERS: "answers were bad",
    Metric.LENGTH_LIMITED: "answers ran into the length limit",
    Metric.DEGENERATE: "answers were degenerate",
    Metric.REJECTED: "requests were rejected",
}


def sentence(evidence: Evidence, decision: Decision, figures: Sequence[MetricFigures], need: Need) -> str:
    """One sentence for people: both sides' counts and values, the interval, the limit, or what is still needed."""
    if decision.state is State.WORSE:
        by_metric = {shown.metric: shown for shown in figures}
        return _worse(evidence, [by_metric[metric] for metric in decision.worse_by])
    if decision.state is State.FINE:
        return _fine(figures, decision)
    return _undecided(evidence, decision, figures, need)


def _worse(evidence: Evidence, by: Sequence[MetricFigures]) -> str:
    said = [_since(evidence, shown) + _compared(evidence, shown) for shown in by]
    parts = [said[0] if len(said) == 1 else f"worse by several limits together, by none alone: {'; and '.join(said)}"]
    if evidence.canary_keys:
        keys = evidence.canary_keys
        parts.append(f"; in {keys:,} session{_s(keys)} on the canary and {evidence.stable_keys:,} on stable")
    if left_out := _left_out(evidence):
        parts.append(f"; {left_out}")
    return "".join(parts)


def _since(evidence: Evidence, shown: MetricFigures) -> str:
    if shown.since_look is None:
        return ""
    return f"since {datetime.fromtimestamp(shown.since_look * evidence.look_s, UTC):%H:%M:%S} UTC, "


def _left_out(evidence: Evidence) -> str:
    """How many requests of busy sessions were not counted; empty when none."""
    ours, theirs = evidence.left_out
    if not ours and not theirs:
        return ""
    return (
        f"not counted are {ours:,} canary and {theirs:,} stable request{_s(theirs)}, beyond the first {MOST_PER_KEY} "
        "an hour of one session"
    )


def _compared(evidence: Evidence, shown: MetricFigures) -> str:
    limit = f"the limit is {written(limit_of(shown.metric), evidence.limits[limit_of(shown.metric)])}"
    if shown.metric in SHARES:
        ours = (
            f"{shown.canary_hits:,} of {shown.canary_n:,} canary {_WERE[shown.metric]} ({_percent(shown.canary_value)})"
        )
        if shown.metric is Metric.BAD_ANSWERS and (evidence.stable_down or evidence.has_all):
            return f"{ours}; {_alone(evidence, limit)}"
        return (
            f"{ours} against {shown.stable_hits:,} of {shown.stable_n:,} on stable ({_percent(shown.stable_value)}); "
            f"the difference is {_between(shown.low, shown.high, _points)}, {limit}"
        )
    ours, theirs = _value(shown.metric, shown.canary_value), _value(shown.metric, shown.stable_value)
    ratio, low, high = _ratios(shown)
    return (
        f"{WORDS[shown.metric]} {ours} on {shown.canary_n:,} canary answers against {theirs} on {shown.stable_n:,} "
        f"of stable ({ratio}, {_between(low, high, _times)}; {limit})"
    )


def _alone(evidence: Evidence, limit: str) -> str:
    """Why bad answers are not compared, and what they are held to."""
    known = evidence.shares[Metric.BAD_ANSWERS].known_centre
    bar = f"{limit} above {'none' if known is None else f'the {_percent(known)} that stable had before'}"
    if not evidence.stable_down:
        return f"it had all requests, so it is judged on its own, and {bar}"
    return (
        f"stable was down, so the canary is judged on its own, and {bar}; if one and the same outage took both, start "
        "it again with --again"
    )


def _fine(figures: Sequence[MetricFigures], decision: Decision) -> str:
    judged = [shown for shown in figures if shown.state not in (OFF, ABSENT)]
    most = max(judged, key=lambda shown: shown.canary_n)
    values = ", ".join(
        f"{WORDS[shown.metric]} {_shown(shown.metric, shown.canary_value)} against "
        f"{_shown(shown.metric, shown.stable_value)}"
        for shown in judged
    )
    said = f"within every limit after {most.canary_n:,} canary requests against {most.stable_n:,} on stable: {values}"
    return f"{said}; {_without(decision.absent)}" if decision.absent else said


def _without(absent: Sequence[Metric]) -> str:
    return f"no request asks for text, so no answer of either side has a {' or '.join(WORDS[each] for each in absent)}"


def _undecided(evidence: Evidence, decision: Decision, figures: Sequence[MetricFigures], need: Need) -> str:
    if not evidence.wealth:
        return "every limit is off, so nothing is judged"
    requests = max(shown.canary_n for shown in figures)
    if requests == 0:
        return "no canary request has been judged yet"
    parts = [f"undecided after {requests:,} canary request{_s(requests)}"]
    if decision.open:
        parts.append(f"not known to be within the limit yet: {', '.join(WORDS[metric] for metric in decision.open)}")
    if need.requests:
        more = f"about {need.requests:,} more canary request{_s(need.requests)} needed"
        parts.append(more if need.seconds is None else f"{more}, {_duration(need.seconds)} at today's rate")
    if evidence.warm_from is None and any(metric not in SHARES for metric in evidence.wealth):
        parts.append(f"times count after the first {WARM_UP} answers")
    if decision.absent:
        parts.append(_without(decision.absent))
    if (missing := _missing(decision, figures)) and evidence.load.judged >= MANY:
        names = dict.fromkeys(limit_of(metric) for metric in missing)
        off = " ".join(f"--limit {name}={OFF}" for name in names)
        parts.append(
            f"no canary answer has shown a {' or '.join(WORDS[metric] for metric in missing)}; where none can, {off}"
        )
    if left_out := _left_out(evidence):
        parts.append(left_out)
    parts.extend(_waits_for(evidence, wait) for wait in decision.waits)
    return "; ".join(parts)


def _missing(decision: Decision, figures: Sequence[MetricFigures]) -> list[Metric]:
    """Metrics of times that are waited for and that the canary never had."""
    return [
        shown.metric
        for shown in figures
        if shown.metric in decision.open and shown.metric not in SHARES and not shown.canary_n
    ]


def _waits_for(evidence: Evidence, wait: Wait) -> str:
    match wait:
        case Wait.AGE:
            return "it has not served long enough"
        case Wait.STABLE:
            return "stable is down, so there is nothing to compare with"
        case Wait.SHARE:
            judged = "only bad answers are" if Metric.BAD_ANSWERS in evidence.wealth else "nothing is"
            return f"it has all requests, so there is nothing to compare with: {judged} judged until it has fewer"
        case Wait.LOAD:
            canary, stable = load_figures(evidence.load)
            return (
                f"its times were measured on an engine that was idle ({_percent(canary.busy)} of its slots busy) while "
                f"stable's was full ({_percent(stable.busy)}), so they do not show that it will be as quick under "
                "stable's load: raise its share, or take them as they are with `limits` and --ignore-load"
            )


def _ratios(shown: MetricFigures) -> tuple[str, float | None, float | None]:
    """The ratio of the values and its interval, for `speed` turned from time per token to speed."""
    ratio = shown.canary_value / shown.stable_value if shown.canary_value and shown.stable_value else None
    low, high = shown.low, shown.high
    if shown.metric is Metric.SPEED:
        ratio = 1 / ratio if ratio else None
        low, high = (1 / high if high else None), (1 / low if low else None)
    return _times(ratio) if ratio is not None else "ratio unknown", low, high


def _between(low: float | None, high: float | None, shown: "_Format") -> str:
    if low is None and high is None:
        return "not bounded yet"
    if low is None or high is None:
        return f"at least {shown(low)}" if low is not None else f"at most {shown(high)}"
    return f"between {shown(low)} and {shown(high)}"


class _Format:
    """A number and how it is written."""

    def __init__(self, pattern: str, factor: float = 1.0) -> None:
        self._pattern, self._factor = pattern, factor

    def __call__(self, value: float | None) -> str:
        return "unknown" if value is None else self._pattern.format(self._factor * value)


_points = _Format("{:+.1f} points", 100.0)
_times = _Format("{:.2f} ×")
_percent = _Format("{:.1f} %", 100.0)


def _shown(metric: Metric, value: float | None) -> str:
    return _percent(value) if metric in SHARES else _value(metric, value)


def _value(metric: Metric, value: float | None) -> str:
    if value is None:
        return "unknown"
    if metric is Metric.SPEED:
        return f"{1 / value:.1f} tokens/s"
    return f"{1000 * value:,.0f} ms" if value < 10 else f"{value:,.1f} s"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _duration(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    if minutes < 120:
        return f"{minutes} min"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 72 else f"{round(hours / 24)} days"
