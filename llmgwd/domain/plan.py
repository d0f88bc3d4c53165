"""A canary's plan: which share comes next and when, and what follows the last one."""

from datetime import UTC, datetime, timedelta

import msgspec

from llmgwd.domain.errors import unusable
from llmgwd.protocol.states import OnDeadline, VerdictState

LEAST_JUDGED = 20
"""Canary requests that must have been judged under one share before a plan gives the next."""


class Plan(msgspec.Struct, frozen=True):
    """What was asked for when the canary was started. `steps` are shares in percent, at least one."""

    steps: tuple[float, ...]
    hold_s: float = 0.0
    """How long each step is held."""
    auto_promote: bool = False
    deadline_s: float | None = None
    """Seconds from its first request until it must have a verdict."""
    on_deadline: OnDeadline = OnDeadline.HOLD

    @property
    def acts(self) -> bool:
        """Whether anything follows by itself; otherwise it is one share until a person changes it."""
        return len(self.steps) > 1 or self.auto_promote or self.deadline_s is not None


class Progress(msgspec.Struct, frozen=True):
    """How far a plan has come. Times are wall-clock, stored, and so survive a restart."""

    since: datetime
    """When it began to serve."""
    step: int = 0
    """The last step not above the present share; -1: the share is below all of them."""
    step_since: datetime | None = None
    """When this step's share was given; None: at `since`."""
    judged_before: int = 0
    """Canary requests that had been judged by then."""
    paused_at: datetime | None = None
    deadline_told: bool = False
    late_by_hand: bool = False
    """A person let it go on though it was undecided at its deadline."""


class Standing(msgspec.Struct, frozen=True):
    """How the canary does."""

    verdict: VerdictState
    share: float
    """The one it has, in percent: a step's, or a person's."""
    judged: int = 0
    """Its requests that have been judged, over its whole life."""
    is_ready: bool = True
    """Whether its replica is."""


class Wait(msgspec.Struct, frozen=True):
    """Nothing now: why, and until when if that is known."""

    why: str
    until: datetime | None = None
    for_resume: bool = False
    """Until a person lets the plan go on."""


class GiveShare(msgspec.Struct, frozen=True):
    """The next step's share."""

    step: int
    percent: float


class PromoteIt(msgspec.Struct, frozen=True):
    """The plan is through and the verdict is fine."""


class TellDeadline(msgspec.Struct, frozen=True):
    """Undecided at the deadline: tell people once, and hold."""


class GiveUp(msgspec.Struct, frozen=True):
    """Undecided at the deadline: take it out."""


Move = Wait | GiveShare | PromoteIt | TellDeadline | GiveUp


def next_move(plan: Plan, progress: Progress, standing: Standing, now: datetime) -> Move:
    """What the plan does at `now` for a canary that serves."""
    if standing.verdict is VerdictState.WORSE:
        if standing.share == 0:
            return Wait("was found worse, and is taken out as soon as it has a share")
        return Wait("serves worse: it gets no further share and is taken out")
    is_late = standing.verdict is VerdictState.UNDECIDED and _is_past_deadline(plan, progress, now)
    gives_up = is_late and plan.on_deadline is OnDeadline.ABORT
    if is_late and not gives_up and not progress.deadline_told:
        return TellDeadline()
    if progress.paused_at is not None:
        then = "; past its deadline, it is taken out when that goes on, unless it is fine" if gives_up else ""
        return Wait(f"its plan is paused{then}", for_resume=True)
    if gives_up:
        return GiveUp()
    if is_late and _is_held_by_deadline(plan, progress):
        return Wait("undecided past its deadline: gets no further share until it is fine", for_resume=True)
    move = _go_on(plan, progress, standing, now)
    if isinstance(move, Wait) and standing.verdict is VerdictState.UNDECIDED:
        told = "; undecided past its deadline" if is_late else _until_the_deadline(plan, progress)
        return msgspec.structs.replace(move, why=move.why + told)
    return move


def _is_held_by_deadline(plan: Plan, progress: Progress) -> bool:
    """Of one that was told of: whether there is a share left that it would be given, and no person let it go on."""
    return progress.deadline_told and not progress.late_by_hand and progress.step + 1 < len(plan.steps)


def _go_on(plan: Plan, progress: Progress, standing: Standing, now: datetime) -> Move:
    if standing.share == 0:
        return Wait("nothing: its share is 0")
    following = progress.step + 1
    held_until = (progress.step_since or progress.since) + timedelta(seconds=plan.hold_s)
    if now < held_until:
        what = f"then {plan.steps[following]:g} %" if following < len(plan.steps) else _after_the_last(plan)
        return Wait(f"holds {standing.share:g} %, {what}", held_until)
    if not standing.is_ready:
        return Wait("waits for its replica to be ready")
    if following < len(plan.steps):
        # Time alone shows nothing: an idle canary, or one that answers nobody, keeps the share that it has.
        missing = LEAST_JUDGED - (standing.judged - progress.judged_before)
        if missing > 0:
            more = f"{missing} more judged canary request{'' if missing == 1 else 's'}"
            return Wait(f"waits for {more}, then {plan.steps[following]:g} %")
        return GiveShare(following, plan.steps[following])
    if not plan.auto_promote:
        return Wait("waits for a person to promote or abort it")
    return PromoteIt() if standing.verdict is VerdictState.FINE else Wait("is promoted as soon as the verdict is fine")


def _is_past_deadline(plan: Plan, progress: Progress, now: datetime) -> bool:
    return plan.deadline_s is not None and now >= progress.since + timedelta(seconds=plan.deadline_s)


def _until_the_deadline(plan: Plan, progress: Progress) -> str:
    if plan.deadline_s is None:
        return ""
    at = (progress.since + timedelta(seconds=plan.deadline_s)).astimezone(UTC)
    ends = "it is taken out" if plan.on_deadline is OnDeadline.ABORT else "people are told"
    return f"; still undecided at {at:%Y-%m-%d %H:%M:%S} UTC, {ends}"


def _after_the_last(plan: Plan) -> str:
    return "then it is promoted when the verdict is fine" if plan.auto_promote else "then waits for a person"


def given_by_hand(plan: Plan, progress: Progress | None, share: float, now: datetime, judged: int) -> Progress | None:
    """After a person gave a share: a plan that would give another, or promote, is held, and goes on from there.

    progress: None while the canary is prepared; judged: its requests that have been judged so far.
    """
    if len(plan.steps) == 1 and not plan.auto_promote:
        return progress
    step = sum(step <= share for step in plan.steps) - 1
    paused_at = progress.paused_at if progress else None
    return msgspec.structs.replace(
        progress or Progress(since=now),
        step=step,
        step_since=now,
        judged_before=judged,
        paused_at=paused_at or now,
    )


def resumed(plan: Plan, progress: Progress, now: datetime) -> Progress:
    """The time in the pause does not count towards the hold, and a deadline that was told of holds nothing any more."""
    if _is_held_by_deadline(plan, progress):
        progress = msgspec.structs.replace(progress, late_by_hand=True)
    if progress.paused_at is None:
        return progress
    began = progress.step_since or progress.since
    # Paused while it was prepared, or given a share in the pause: the hold had not begun then.
    held = max(progress.paused_at, began) - began
    return msgspec.structs.replace(progress, paused_at=None, step_since=now - held)


def check_plan(plan: Plan, *, of_steps: bool = True) -> None:
    """Raises LlmgwError unless the plan can be carried out. Not `of_steps`: it is one share, which may be 0."""
    for before, after in zip(plan.steps, plan.steps[1:], strict=False):
        if not after > before:
            raise unusable("bad_steps", f"steps must rise, and {after:g} does not come after {before:g}")
    for step in plan.steps if of_steps else ():
        if not 0 < step < 100:
            raise unusable(
                "bad_steps",
                f"a step of {step:g} % is not possible: give percents above 0 and below 100, at which nothing is left "
                "to compare with; after the last step comes the promotion",
            )
    if plan.auto_promote and plan.steps[-1] >= 100:
        raise unusable(
            "bad_percent",
            "a canary that has 100 % of the requests cannot be found fine, as nothing is left to compare with: give "
            "--auto-promote a share below 100",
        )
    for name, seconds in (("hold", plan.hold_s), ("deadline", plan.deadline_s)):
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise unusable(f"bad_{name}", f"a {name} of {seconds:g} s is not possible")
