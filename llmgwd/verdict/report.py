"""The verdict as it is shown: the state, the sentence, and every metric's figures."""

from dataclasses import dataclass

from llmgwd.verdict.decision import Decision, State
from llmgwd.verdict.evidence import Evidence, Final
from llmgwd.verdict.figures import Need, figures_of, need
from llmgwd.verdict.limits import Metric
from llmgwd.verdict.metric_figures import MetricFigures
from llmgwd.verdict.sentence import sentence


@dataclass(frozen=True)
class Report:
    state: State
    sentence: str
    metrics: tuple[MetricFigures, ...]
    need: Need
    stable_down: bool
    """The limits were held against the canary alone."""


def make_final(evidence: Evidence, decision: Decision) -> None:
    """Keeps a decision of worse with its sentence and figures, whatever comes later.

    One that was taken early may look otherwise once stable's failures of the same look come in, and the removal that
    follows it may have to wait.
    """
    if evidence.final is None and decision.worse_by:
        spoken = report(evidence, decision)
        evidence.final = Final(list(decision.worse_by), spoken.sentence, list(spoken.metrics))


def report(evidence: Evidence, decision: Decision) -> Report:
    """Explains a decision that `decide` took on this very evidence. Takes milliseconds: only for what is shown."""
    needed, final = need(evidence, decision), evidence.final
    if final:
        return Report(decision.state, final.sentence, tuple(final.figures), needed, evidence.stable_down)
    figures = tuple(figures_of(evidence, metric, decision) for metric in Metric)
    text = sentence(evidence, decision, figures, needed)
    return Report(decision.state, text, figures, needed, evidence.stable_down)
