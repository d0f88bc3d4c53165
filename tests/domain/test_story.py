"""The whole story of one model, told at random: verbs, crashes and verdicts through the pure decisions.

Effects are the smallest that could be: a step's act changes the fields below, as the real one changes the store.
"""

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmgwd.domain.canary import Canary, CanaryEvent, after
from llmgwd.domain.catalog import Model, Origin, candidate, moved, moved_back
from llmgwd.domain.errors import LlmgwError
from llmgwd.domain.jobs import Ending, Job, first_unfinished, planned
from llmgwd.domain.plan import GiveShare, GiveUp, Plan, Progress, PromoteIt, Standing, given_by_hand, next_move
from llmgwd.domain.recovery import Course, can_be_undone, course, served_meanwhile
from llmgwd.protocol.states import CanaryPhase, JobKind, JobState, OnDeadline, StepState, VerdictState

START = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = Plan(steps=(5, 25, 50), hold_s=60, auto_promote=True, deadline_s=600, on_deadline=OnDeadline.ABORT)


class Story(RuleBasedStateMachine):
    """What is on disk outlives a crash; `serving`, what runs, only one that the machine survives."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.newest = 1
        self.rows: dict[str, Model] = {"chat": Model("chat", self.origin(1))}
        self.canaries: list[Canary] = []
        self.job: Job | None = None
        self.events: list[str] = []
        self.rejected: set[str] = set()
        self.serving = {"chat": self.origin(1).short}
        """The weights that each row's replicas run."""
        self.jobs = 0
        self.told: list[str] = []
        """The event log at the last look."""
        self.promoted: list[str] = []
        """Jobs that committed a promotion."""
        self.cancelled: set[str] = set()

    def origin(self, number: int) -> Origin:
        return Origin(repo="a/b", revision=f"{number:040x}"[::-1])

    @property
    def canary(self) -> Canary | None:
        running = [canary for canary in self.canaries if canary.runs]
        return running[0] if running else None

    def put(self, canary: Canary) -> None:
        self.canaries = [each for each in self.canaries if each.id != canary.id] + [canary]

    def begin(self, kind: JobKind) -> None:
        self.jobs += 1
        self.job = Job(
            f"{kind}-{self.jobs}", kind, "chat", "ann", self.now, state=JobState.RUNNING, steps=planned(kind)
        )

    # Verbs, each refused as the real one is.

    @precondition(lambda self: self.job is None and self.canary is None)
    @rule(revision=st.integers(1, 4), again=st.booleans())
    def start_canary(self, revision: int, again: bool) -> None:
        self.newest = revision
        refused = self.origin(revision).short in self.rejected and not again
        if not refused and self.origin(revision) != self.rows["chat"].origin:
            self.begin(JobKind.CANARY)

    @precondition(lambda self: self.job is None and self.canary is None)
    @rule(revision=st.integers(1, 4))
    def update(self, revision: int) -> None:
        self.newest = revision
        if self.origin(revision) != self.rows["chat"].origin:
            self.begin(JobKind.UPDATE)

    @precondition(lambda self: self.job is None and self.canary is None and self.rows["chat"].previous is not None)
    @rule()
    def rollback(self) -> None:
        self.begin(JobKind.ROLLBACK)

    @precondition(lambda self: self.job is None and self.canary is not None)
    @rule()
    def promote(self) -> None:
        assert self.canary is not None
        try:
            after(self.canary, CanaryEvent.PROMOTE)
        except LlmgwError:
            return
        self.begin(JobKind.PROMOTE)

    @rule(percent=st.integers(0, 100))
    def change_share(self, percent: int) -> None:
        canary = self.canary
        if canary is not None and canary.phase in (CanaryPhase.PREPARING, CanaryPhase.SERVING):
            progress = given_by_hand(canary.plan, canary.progress, percent, self.now, 0)
            self.put(msgspec.structs.replace(canary, share=percent, progress=progress))
            self.events.append(f"share {percent}")

    @rule()
    def abort(self) -> None:
        """Wins over what can be undone, and else is refused."""
        if self.job is not None and self.job.kind in (JobKind.CANARY, JobKind.PROMOTE) and can_be_undone(self.job):
            self.end(Ending(JobState.CANCELLED, "ann", "aborted"))
        if self.canary is not None:
            self.take_out(self.canary, CanaryPhase.ABORTED)

    def take_out(self, canary: Canary, ending: CanaryPhase) -> None:
        event = CanaryEvent.FAIL if ending is CanaryPhase.FAILED else CanaryEvent.ABORT
        try:
            going = msgspec.structs.replace(canary, phase=after(canary, event), ending=canary.ending or ending)
        except LlmgwError:
            assert canary.phase is CanaryPhase.PROMOTING
            return
        if going.ending is CanaryPhase.ROLLED_BACK:
            self.rejected.add(canary.origin.short)
        self.put(going)
        self.events.append(f"{canary.id} {going.ending}")

    @precondition(lambda self: self.canary is not None and self.canary.phase is CanaryPhase.REMOVING)
    @rule()
    def removal_ends(self) -> None:
        canary = self.canary
        assert canary is not None
        self.put(msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.REMOVED)))
        self.rows.pop("chat-canary", None)
        self.serving.pop("chat-canary", None)

    @precondition(lambda self: self.job is None and self.canary is not None)
    @rule(verdict=st.sampled_from(VerdictState), seconds=st.integers(1, 400), judged=st.integers(0, 100))
    def look(self, verdict: VerdictState, seconds: int, judged: int) -> None:
        self.now += timedelta(seconds=seconds)
        canary = self.canary
        assert canary is not None
        if canary.phase is not CanaryPhase.SERVING or canary.progress is None:
            return
        if verdict is VerdictState.WORSE and canary.share > 0:
            self.take_out(canary, CanaryPhase.ROLLED_BACK)
            return
        match next_move(canary.plan, canary.progress, Standing(verdict, canary.share, judged), self.now):
            case GiveShare(step, percent):
                assert percent > canary.share > 0
                progress = msgspec.structs.replace(canary.progress, step=step, step_since=self.now)
                self.put(msgspec.structs.replace(canary, share=percent, progress=progress))
            case PromoteIt():
                self.begin(JobKind.PROMOTE)
            case GiveUp():
                self.take_out(canary, CanaryPhase.ABORTED)

    # The runner: a step acts, and its result is written afterwards; a crash may come between.

    @precondition(lambda self: self.job is not None)
    @rule(count=st.integers(1, 8), crashes=st.booleans())
    def steps(self, count: int, crashes: bool) -> None:
        """So many steps; the last one's result is not written any more when the daemon crashes."""
        for number in range(count):
            if self.job is not None:
                self.step(crashes and number == count - 1)

    def step(self, crashes: bool) -> None:
        job = self.job
        assert job is not None
        index = first_unfinished(job)
        if index == len(job.steps):
            self.end(Ending(JobState.DONE, "ann", "done"))
            return
        self.act(job.kind, job.steps[index].name)
        if crashes:
            self.crash()
            return
        assert self.job is not None
        steps = list(self.job.steps)
        steps[index] = msgspec.structs.replace(steps[index], state=StepState.DONE)
        self.job = msgspec.structs.replace(self.job, steps=tuple(steps), resumed=0)

    @precondition(lambda self: self.job is not None)
    @rule()
    def step_fails(self) -> None:
        self.end(Ending(JobState.FAILED, "ann", "it failed"))

    @precondition(lambda self: self.job is not None and can_be_undone(self.job))
    @rule(machine_too=st.booleans())
    def crash_while_a_cancelled_job_is_undone(self, machine_too: bool) -> None:
        assert self.job is not None
        self.cancelled.add(self.job.id)
        self.note(ending=Ending(JobState.CANCELLED, "ann", "cancelled"))
        self.crash(machine_too)

    def note(self, **changes: object) -> None:
        assert self.job is not None
        self.job = msgspec.structs.replace(self.job, **changes)

    def act(self, kind: JobKind, step: str) -> None:
        """Does nothing whose result holds already, as each real step."""
        assert self.job is not None
        job, chat = self.job, self.rows["chat"]
        new = self.origin(self.newest)
        match kind, step:
            case JobKind.CANARY, "catalog" if not job.written:
                self.rows["chat-canary"] = candidate(chat, new, None)
                begun = Canary(job.id, "chat", new, chat.origin, PLAN.steps[0], "ann", self.now, plan=PLAN)
                self.put(begun)
                self.note(written=True)
            case JobKind.CANARY, "placement" | "smoke test":
                self.serving["chat-canary"] = self.rows["chat-canary"].origin.short
            case JobKind.CANARY, "split" if self.canary and self.canary.phase is CanaryPhase.PREPARING:
                phase = after(self.canary, CanaryEvent.READY)
                began = self.canary.progress or Progress(self.now)
                progress = msgspec.structs.replace(began, since=self.now, step_since=None)
                self.put(msgspec.structs.replace(self.canary, phase=phase, progress=progress))
            case JobKind.PROMOTE, "catalog" if not job.written:
                canary = self.canary
                assert canary is not None
                self.put(msgspec.structs.replace(canary, phase=after(canary, CanaryEvent.PROMOTE)))
                self.rows["chat"] = moved(chat, self.rows.pop("chat-canary").origin, ())
                self.serving.pop("chat-canary", None)
                self.note(written=True, committed=True, before=chat)
                self.promoted.append(job.id)
            case JobKind.PROMOTE, "replicas":
                self.serving["chat"] = chat.origin.short
            case JobKind.PROMOTE, "canary" if self.canary is not None:
                self.put(msgspec.structs.replace(self.canary, phase=after(self.canary, CanaryEvent.PROMOTED)))
            case ((JobKind.UPDATE | JobKind.ROLLBACK), "catalog") if not job.written:
                self.rows["chat"] = moved(chat, new, ()) if kind is JobKind.UPDATE else moved_back(chat)
                self.note(written=True, before=chat)
            case ((JobKind.UPDATE | JobKind.ROLLBACK), "replicas"):
                self.note(committed=True)
                self.serving["chat"] = chat.origin.short
                if kind is JobKind.ROLLBACK and job.before is not None:
                    self.rejected.add(job.before.origin.short)

    def end(self, ending: Ending) -> None:
        """Undoes what can be undone, as each real recipe."""
        job = self.job
        assert job is not None
        if ending.state is not JobState.DONE:
            if job.kind is JobKind.CANARY and self.canary is not None and self.canary.id == job.id:
                failed = ending.state is JobState.FAILED
                self.take_out(self.canary, CanaryPhase.FAILED if failed else CanaryPhase.ABORTED)
            if job.kind in (JobKind.UPDATE, JobKind.ROLLBACK) and job.before is not None and not job.committed:
                self.rows["chat"] = job.before
            if job.kind is JobKind.PROMOTE and job.committed:
                self.act(JobKind.PROMOTE, "canary")
                self.serving["chat"] = self.rows["chat"].origin.short
        self.events.append(f"{job.id} {ending.state}")
        self.job = None

    @rule(machine_too=st.booleans())
    def crash(self, machine_too: bool = False) -> None:
        """The daemon's memory is gone, with the machine also what runs; then it starts again."""
        if machine_too:
            self.serving.clear()
        if self.job is not None:
            self.note(resumed=self.job.resumed + 1)
            self.events.append(f"{self.job.id} resumed")
        for row in list(self.rows.values()):
            wanted = served_meanwhile(row, self.canary, self.job)
            if wanted is not None:
                self.serving.setdefault(row.name, wanted.origin.short)
        if self.job is not None and course(self.job) is Course.UNDO:
            self.end(self.job.ending or Ending(JobState.FAILED, "llmgw", "given up"))

    # What holds at every moment.

    @invariant()
    def at_most_one_canary(self) -> None:
        assert sum(canary.runs for canary in self.canaries) <= 1
        assert len({canary.id for canary in self.canaries}) == len(self.canaries)

    @invariant()
    def shares_are_percents_and_nothing_is_given_before_it_serves(self) -> None:
        for canary in self.canaries:
            assert 0 <= canary.share <= 100
            if canary.phase is CanaryPhase.SERVING:
                assert canary.progress is not None

    @invariant()
    def row_and_canary_agree(self) -> None:
        in_catalog = self.canary is not None and self.canary.phase is not CanaryPhase.PROMOTING
        assert ("chat-canary" in self.rows) == in_catalog

    @invariant()
    def a_promotion_that_committed_is_never_undone(self) -> None:
        for job_id in self.promoted:
            ended = [event for event in self.events if event.startswith(f"{job_id} ")]
            assert not any(event.endswith(JobState.CANCELLED) for event in ended)
        assert sum(each.phase in (CanaryPhase.PROMOTED, CanaryPhase.PROMOTING) for each in self.canaries) == len(
            self.promoted
        )

    @invariant()
    def what_was_cancelled_is_never_done(self) -> None:
        assert not self.cancelled & {event.split()[0] for event in self.events if event.endswith(f" {JobState.DONE}")}

    @invariant()
    def what_was_rolled_back_is_remembered(self) -> None:
        for canary in self.canaries:
            if canary.phase is CanaryPhase.ROLLED_BACK:
                assert canary.origin.short in self.rejected

    @invariant()
    def without_a_job_nothing_is_in_between(self) -> None:
        if self.job is None:
            assert self.serving["chat"] == self.rows["chat"].origin.short
            if self.canary is not None:
                assert self.canary.phase in (CanaryPhase.SERVING, CanaryPhase.REMOVING)

    @invariant()
    def the_event_log_only_grows(self) -> None:
        assert self.events[: len(self.told)] == self.told
        self.told = list(self.events)


def test_a_rollback_that_arrived_is_served_though_the_machine_ended_and_its_last_step_failed() -> None:
    story = Story()
    story.update(2)
    story.steps(8, False)
    story.rollback()
    story.steps(2, True)
    story.crash(machine_too=True)
    story.step_fails()
    story.without_a_job_nothing_is_in_between()


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
