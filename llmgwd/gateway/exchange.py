"""One request from its body's last byte to its outcome: rescue, fallbacks, relay, and the entry in the ledger.

A machine of callbacks, without a task of its own. How it gets to an engine is `Passage`'s part. Every way out of an
attempt goes through `_leave_replica`; every way out of the exchange, each of which acts once, is `_end`, `_refuse` or
`client_left`.
"""

import time
from typing import TYPE_CHECKING

from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.ask import Ask, Kind
from llmgwd.gateway.framing import ReplyWriter
from llmgwd.gateway.heads import RequestHead
from llmgwd.gateway.lane import Lane, Mould
from llmgwd.gateway.lines import Place
from llmgwd.gateway.local import local_reply
from llmgwd.gateway.meter import Facts, judge
from llmgwd.gateway.passage import Passage
from llmgwd.gateway.readers import Reader, reader_for
from llmgwd.gateway.routing import Cause, Choice, find_model, next_fallback
from llmgwd.gateway.state import Gateway
from llmgwd.gateway.upstream import UpstreamConnection
from llmgwd.protocol.samples import Arm, Outcome

if TYPE_CHECKING:
    from llmgwd.gateway.client import ClientConnection
    from llmgwd.gateway.ledger import ArmKey

_AGE_SHOWS_WITHIN_S = 0.1
"""A connection that its engine had closed says so at once; one lost later was lost over the request."""
_BROKEN_EVENT = (
    b'data: {"error":{"message":"the engine broke off in the middle of this answer; ask again","type":"server_error",'
    b'"param":null,"code":"upstream_broken"}}\n\n'
)


class Exchange(Passage):
    """Owned by its client's connection; owns the attempt that is under way."""

    __slots__ = (
        "_carried_at",
        "_client",
        "_fell_back_from",
        "_first_refusal",
        "_given_up",
        "_has_ended",
        "_has_moved",
        "_lane",
        "_reader",
        "_rescued_from",
        "_status",
        "_writer",
    )

    def __init__(self, gateway: Gateway, client: "ClientConnection", head: RequestHead, body: bytes) -> None:
        super().__init__(gateway, head, body)
        self._client = client
        self._reader: Reader | None = None
        self._status = 0
        self._writer = ReplyWriter(client, head)
        self._has_ended = False
        self._has_moved = False
        self._lane: Lane | None = None
        self._carried_at: float | None = None
        """When the lane had carried something at the last check."""
        self._rescued_from: ArmKey | None = None
        self._given_up: tuple[str, ...] = ()
        """The models that could not answer it."""
        self._first_refusal: RefusedError | None = None
        """What the client would have been told by the model that it asked for."""
        self._fell_back_from: ArmKey | None = None

    def start(self) -> None:
        try:
            local = local_reply(self._head, self._gateway.table)
            if local is not None:
                self._answer_locally(*local)
                return
            self._ask = Ask(self._head, self._body)
            model = find_model(self._gateway.table, self._ask.model)
            self._choice = self._gateway.splits.choose(model, self._ask.session, self._head.arm)
            self._times.start()
            self._times.streams = self._ask.stream
            self._gateway.ledger.arrived(self._choice, self._ask, self._times)
            self._attempt(Place.NEW)
        except RefusedError as refusal:
            self._refuse(refusal)

    # what becomes of an attempt

    def reply_came(self, connection: UpstreamConnection, data: bytes, complete: bool) -> None:
        reader = self._reader
        if reader is None:
            assert connection.head is not None
            self._status = connection.head.status
            if self._status >= 500 and self._goes_elsewhere(f"the engine answered {self._status}"):
                return
            assert self._ask is not None
            assert self._choice is not None
            assert self._replica is not None
            served_as = self._replica.served_as[self._choice.model.adapter]
            reader = self._reader = reader_for(self._ask, served_as.served_name, connection)
        self._has_moved = True
        out = reader.feed(data, time.monotonic()) if data else b""
        if complete:
            out += reader.finish()
        if reader.facts.failed and self._goes_elsewhere("the engine answered with an error"):
            return
        if out or complete:
            self._write(connection, out, complete)
        if self._lane is not None:
            self._lane.fit(reader.mould if connection.is_between_chunks else None)
        elif reader.mould is not None and connection.is_between_chunks and not complete:
            self._open_lane(connection, reader.facts, reader.mould)
        if complete:
            self._connection = None
            connection.release()
            self._end(judge(self._kind, self._status, reader.facts, streamed=reader.streamed, whole=True))

    def _open_lane(self, connection: UpstreamConnection, facts: Facts, mould: Mould) -> None:
        """Lets the next chunks go past all of this, as long as they are like the last one."""
        write = self._client.writes
        if facts.health is None or facts.health.asks_json or not self._writer.is_chunked or write is None:
            return
        self._lane = Lane(connection, write, facts, facts.health)
        self._lane.fit(mould)
        connection.divert(self._lane)

    def reply_lost(self, connection: UpstreamConnection, why: str, reset: bool) -> None:
        self._connection = None
        if self._died_of_age(connection) and self._replica is not None:
            # The engine is not to blame, and a fresh connection will tell.
            self._may_have_been_seen = True
            self._connect(self._replica)
        elif self._can_be_rescued():
            self._rescue()
        elif self._writer.is_begun:
            self._break_off(connection, reset=reset)
        else:
            self._fail(502, why, Outcome.ERROR)

    def _died_of_age(self, connection: UpstreamConnection) -> bool:
        """Whether an idle connection was closed before it could be used again, and not by what the request did."""
        if connection.heard or not connection.is_used or self._may_have_been_seen:
            return False
        return self._gateway.loop.time() - self._sent_at < _AGE_SHOWS_WITHIN_S

    def _lost_unsent(self, why: str) -> None:
        if self._can_be_rescued():
            self._rescue()
        elif self._may_have_been_seen or not self._try_another():
            self._fail(502, f"the engine cannot be reached: {why}", Outcome.ERROR)

    def _can_be_rescued(self) -> bool:
        choice = self._choice
        if choice is None or choice.arm.arm is not Arm.CANARY or choice.cause is Cause.FORCED or self._writer.is_begun:
            return False
        table = self._gateway.table
        model = table.models.get(choice.model.name) if table is not None else None
        return model is not None and bool(model.stable.replicas)

    def _rescue(self) -> None:
        """The canary failed before the client saw a byte: it is charged, and stable is asked."""
        assert self._choice is not None
        assert self._gateway.table is not None
        self._drop_attempt()
        arm, cause = self._choice.arm, self._choice.cause
        self._gateway.ledger.outcome(arm, cause, Outcome.ERROR, None, self._times)
        self._rescued_from = _key(self._choice)
        self._forget_attempt()
        model = self._gateway.table.models[self._choice.model.name]
        self._choice = Choice(model, model.stable, Cause.RESCUE)
        try:
            self._attempt(Place.FIRST)
        except RefusedError as refusal:
            self._refuse(refusal)

    def _goes_elsewhere(self, why: str) -> bool:
        """Whether stable or a fallback makes good for a reply that fails before its first byte; it is asked then."""
        if self._can_be_rescued():
            self._rescue()
        elif self._next_fallback() is not None:
            self._fail(502, why, Outcome.ERROR)
        else:
            return False
        return True

    def _next_fallback(self) -> Choice | None:
        """Who may answer in the model's place; nobody when an arm was insisted on, or part of an answer is out."""
        choice = self._choice
        if choice is None or choice.cause is Cause.FORCED or self._writer.is_begun:
            return None
        assert self._ask is not None
        return next_fallback(self._gateway.table, self._ask.model, (*self._given_up, choice.model.name))

    def _fall_back(self, refusal: RefusedError) -> bool:
        """Asks the next fallback in place of refusing so; False when there is none.

        Each model is asked at most once. What became of the request here is in the ledger already.
        """
        fallback = self._next_fallback()
        if fallback is None:
            return False
        assert self._choice is not None
        self._drop_attempt()
        self._gateway.ledger.dropped(self._times)
        self._first_refusal = self._first_refusal or refusal
        self._fell_back_from = self._fell_back_from or _key(self._choice)
        self._given_up = (*self._given_up, self._choice.model.name)
        self._rescued_from = None
        self._forget_attempt()
        self._times.go()
        self._choice = fallback
        try:
            self._attempt(Place.NEW)
        except RefusedError as again:
            self._refuse(again)
        return True

    def _forget_attempt(self) -> None:
        """The next attempt is on another arm, and nothing of this one matters to it."""
        self._reader = None
        self._status = 0
        self._has_moved = False
        self._tried = frozenset()
        self._may_have_been_seen = False

    # the reply

    @property
    def _kind(self) -> Kind:
        assert self._ask is not None
        return self._ask.kind

    def _write(self, connection: UpstreamConnection, out: bytes, complete: bool) -> None:
        reader, writer = self._reader, self._writer
        if writer.is_begun:
            writer.go_on(out, complete=complete)
            return
        assert reader is not None
        assert self._choice is not None
        lines = self._choice.arm.header
        if self._rescued_from is not None:
            lines += b"x-llmgw-rescued: 1\r\n"
        if self._gateway.is_finishing:
            writer.keeps_alive = False
        writer.begin(connection, out, lines, changes=reader.changes, complete=complete)

    def _break_off(self, connection: UpstreamConnection, *, reset: bool) -> None:
        """The reply ended early with part of it sent: the client is told where that cannot be mistaken for content."""
        reader = self._reader
        assert reader is not None
        out = reader.abandon()
        if reader.streamed and reader.at_boundary and self._writer.takes_events:
            out += _BROKEN_EVENT
        if out:
            self._write(connection, out, complete=False)
        self._writer.keeps_alive = False
        outcome = judge(self._kind, self._status, reader.facts, streamed=reader.streamed, whole=False)
        self._end(Outcome.ERROR if reset and outcome is Outcome.TRUNCATED else outcome)

    # the client

    def client_left(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._drop_attempt()
        outcome = Outcome.CANCELLED
        if self._reader is not None and (
            self._status >= 400 or self._reader.facts.finished or self._reader.facts.failed
        ):
            # It had all there was to have; many clients close at an error's head, or at the last event.
            outcome = judge(self._kind, self._status, self._reader.facts, streamed=self._reader.streamed, whole=True)
        self._account(outcome)

    def client_paused(self) -> None:
        self._times.was_paused = True
        if self._connection is not None:
            self._connection.pause()

    def client_resumed(self) -> None:
        self._has_moved = True
        if self._connection is not None:
            self._connection.resume()

    def check(self, now: float) -> None:
        """Ends an attempt that is past its deadline at `now` of the loop's clock."""
        carried_at = self._reader.facts.last_token_at if self._lane is not None and self._reader is not None else None
        if self._has_moved or carried_at != self._carried_at:
            self._has_moved = False
            self._carried_at = carried_at
            self._heard()
            self._deadline = now + self._gateway.settings.reply_timeout_s
        elif now >= self._deadline:
            self._time_out()

    def _time_out(self) -> None:
        if self._time_out_unsent():
            return
        if self._client.is_paused:
            self._client.abort()
        elif self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()
            if self._can_be_rescued():
                self._rescue()
            elif self._writer.is_begun:
                self._break_off(connection, reset=True)
            else:
                timeout_s = self._gateway.settings.reply_timeout_s
                self._fail(504, f"the engine did not answer within {timeout_s:g} s", Outcome.ERROR)

    # ends

    def _answer_locally(self, status: int, body: bytes, lines: bytes) -> None:
        keep = self._client.answer(status, body, lines, self._head)
        self._has_ended = True
        self._client.exchange_done(keep=keep)

    def _refuse(self, refusal: RefusedError) -> None:
        """Answers with the gateway's own error, unless a fallback can answer; no arm is charged for it."""
        if refusal.falls_back:
            if self._fall_back(refusal):
                return
            refusal = self._first_refusal or refusal
        self._gateway.ledger.dropped(self._times)
        self._drop_attempt()
        keep = self._client.refuse(refusal, self._head)
        self._has_ended = True
        self._client.exchange_done(keep=keep)

    def _fail(self, status: int, why: str, outcome: Outcome) -> None:
        """Answers for an arm that failed before the first byte."""
        assert self._choice is not None
        message = f"model {self._choice.model.name!r} failed on its {self._choice.arm.arm} arm: {why}; try again"
        self._account(outcome)
        headers = self._choice.arm.header
        self._refuse(RefusedError(status, "upstream_failed", message, headers=headers, falls_back=True))

    def _end(self, outcome: Outcome) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._heard()
        self._leave_replica()
        try:
            self._account(outcome)
        finally:
            # Whatever became of the count, the client's next request is not held up by it.
            self._client.exchange_done(keep=self._writer.keeps_alive)

    def _heard(self) -> None:
        """Notes that the replica works; an error that it answers with shows no such thing."""
        if self._replica is not None and 0 < self._status < 500:
            self._replica.heard = True

    def _account(self, outcome: Outcome) -> None:
        choice = self._choice
        if choice is None:
            return
        ledger = self._gateway.ledger
        if self._rescued_from is not None and self._writer.is_begun:
            ledger.rescued(self._rescued_from)
        if self._fell_back_from is not None and self._writer.is_begun:
            ledger.fell_back(self._fell_back_from)
        facts = self._reader.facts if self._reader is not None else None
        ledger.outcome(choice.arm, choice.cause, outcome, facts, self._times)


def _key(choice: Choice) -> "ArmKey":
    """Under which a request of this choice is counted."""
    return choice.arm.key if choice.cause.is_compared else choice.arm.apart_key
