from datetime import UTC, datetime

import msgspec
import pytest

from llmgwd.domain.canary import FINAL, TRANSITIONS, Canary, CanaryEvent, after, check_share, no_canary
from llmgwd.domain.catalog import Model, Origin
from llmgwd.domain.errors import LlmgwError
from llmgwd.protocol.exit_status import ExitStatus
from llmgwd.protocol.states import CanaryPhase

CANARY = Canary(
    id="canary-1-1",
    model="chat",
    origin=Origin(repo="a/b", revision="2" * 40),
    stable_origin=Origin(repo="a/b", revision="1" * 40),
    share=10,
    by="ann",
    started=datetime(2026, 1, 1, tzinfo=UTC),
)
P, E = CanaryPhase, CanaryEvent

ALLOWED = {
    (P.PREPARING, E.READY): P.SERVING,
    (P.PREPARING, E.ABORT): P.REMOVING,
    (P.PREPARING, E.FAIL): P.REMOVING,
    (P.SERVING, E.ABORT): P.REMOVING,
    (P.SERVING, E.FAIL): P.REMOVING,
    (P.SERVING, E.PROMOTE): P.PROMOTING,
    (P.PROMOTING, E.PROMOTED): P.PROMOTED,
    (P.REMOVING, E.ABORT): P.REMOVING,
    (P.REMOVING, E.FAIL): P.REMOVING,
    (P.REMOVING, E.REMOVED): P.ROLLED_BACK,
}


def canary_in(phase: CanaryPhase) -> Canary:
    return msgspec.structs.replace(CANARY, phase=phase, ending=P.ROLLED_BACK if phase is P.REMOVING else None)


@pytest.mark.parametrize("event", CanaryEvent)
@pytest.mark.parametrize("phase", CanaryPhase)
def test_every_event_in_every_phase_is_decided(phase: CanaryPhase, event: CanaryEvent) -> None:
    if (phase, event) in ALLOWED:
        assert after(canary_in(phase), event) is ALLOWED[phase, event]
    else:
        with pytest.raises(LlmgwError) as raised:
            after(canary_in(phase), event)
        assert raised.value.status is ExitStatus.REFUSED
        assert "chat" in raised.value.message


def test_no_event_leads_out_of_a_final_phase() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in FINAL]


def test_abort_after_the_promotion_names_rollback() -> None:
    with pytest.raises(LlmgwError) as raised:
        after(canary_in(P.PROMOTING), E.ABORT)
    assert "already promoted" in raised.value.message
    assert "rollback chat" in raised.value.hint


@pytest.mark.parametrize("percent", [0, 0.5, 33.3, 100])
def test_a_share_may_be_any_percent(percent: float) -> None:
    check_share(percent)


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan"), float("inf")])
def test_what_is_no_percent_is_refused_as_usage(percent: float) -> None:
    with pytest.raises(LlmgwError, match="from 0 to 100") as raised:
        check_share(percent)
    assert raised.value.status is ExitStatus.USAGE


@pytest.mark.parametrize(
    ("origin", "how"),
    [
        pytest.param(Origin(repo="a/b"), "--percent N", id="repository"),
        pytest.param(Origin(path="/m.gguf"), "--path FILE", id="local weights"),
    ],
)
def test_no_canary_says_how_to_start_one(origin: Origin, how: str) -> None:
    error = no_canary(Model("chat", origin, "toy"), "promote")
    assert (error.message, error.hint) == (
        "chat has no canary to promote",
        f"start one with `llmgw ctl model canary chat {how}`",
    )
