"""The verdict as it is shown: the state, the sentence, and every metric's figures."""

from dataclasses import dataclass

from llmgwd.verdict.decision import Decision, State
from llmgwd.verdict.evidence import Evidence
from llmgwd.verdict.figures import MetricFigures, Need, figures_of, need
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.sentence import sentence


@dataclass(frozen=True)
class Report:
    state: State
    sentence: str
    metrics: tuple[MetricFigures, ...]
    need: Need
    stable_down: bool
    """The limits were held against the canary alone."""


def report(evidence: Evidence, decision: Decision) -> Report:
    """Explains a decision that `decide` took on this very evidence. Takes milliseconds: only for what is shown."""
    figures = tuple(figures_of(evidence, metric, decision) for metric in Metric)
    needed = need(evidence, decision)
    text = sentence(evidence, decision, figures, needed)
    return Report(decision.state, text, figures, needed, evidence.stable_down)
