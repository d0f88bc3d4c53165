"""How one request gets to an engine: a replica chosen, waited for, connected to, and the request sent.

The half of an exchange that comes before the reply. `_refuse` and `_lost_unsent` are the two ways it can fail.
"""

from abc import ABC, abstractmethod

from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.ask import Ask
from llmgwd.gateway.dial import Dial
from llmgwd.gateway.heads import RequestHead, authorized
from llmgwd.gateway.ledger import Times
from llmgwd.gateway.lines import LineKey, Place
from llmgwd.gateway.routing import Cause, Choice, choose_again, no_replica, queue_full, waited_too_long
from llmgwd.gateway.state import Gateway
from llmgwd.gateway.table import Replica, Table
from llmgwd.gateway.upstream import UpstreamConnection
from llmgwd.protocol.samples import Arm

_BODY_METHODS = frozenset((b"POST", b"PUT", b"PATCH"))


class Passage(ABC):
    """Has at most one of a place in a line, an attempt to connect, and a connection with the request on it."""

    __slots__ = (
        "_ask",
        "_body",
        "_choice",
        "_connection",
        "_deadline",
        "_dial",
        "_gateway",
        "_head",
        "_line",
        "_may_have_been_seen",
        "_replica",
        "_sent_at",
        "_table",
        "_times",
        "_tried",
    )

    def __init__(self, gateway: Gateway, head: RequestHead, body: bytes) -> None:
        self._gateway = gateway
        self._head = head
        self._body = body
        self._ask: Ask | None = None
        self._choice: Choice | None = None
        self._table: Table | None = None
        self._replica: Replica | None = None
        self._tried: frozenset[Replica] = frozenset()
        self._line: LineKey | None = None
        self._dial: Dial | None = None
        self._connection: UpstreamConnection | None = None
        self._times = Times()
        self._deadline = 0.0
        self._sent_at = 0.0
        self._may_have_been_seen = False
        """Whether an engine may have begun on the request: then no other gets it, lest one request fell them all."""

    # the exchange's side

    @abstractmethod
    def _refuse(self, refusal: RefusedError) -> None:
        """Answers with the gateway's own error."""

    @abstractmethod
    def _lost_unsent(self, why: str) -> None:
        """No connection to the replica: no engine has seen the request, so any other may."""

    @abstractmethod
    def reply_came(self, connection: UpstreamConnection, data: bytes, complete: bool) -> None: ...

    @abstractmethod
    def reply_lost(self, connection: UpstreamConnection, why: str, reset: bool) -> None: ...

    # attempts

    def _attempt(self, place: Place) -> None:
        """Sends the request to the least busy replica of the chosen arm, or waits for one.

        Raises RefusedError when the arm has no replica left, or no place to wait.
        """
        choice, gateway = self._choice, self._gateway
        assert choice is not None
        self._table = gateway.table
        replica = choice.arm.least_busy(self._tried)
        if replica is None:
            gateway.ledger.turned_away(choice.arm.key)
            raise no_replica(choice)
        lines = gateway.lines
        if replica.in_flight >= gateway.settings.max_in_flight or (
            lines.count and place is not Place.FIRST and not lines.is_empty(choice.arm.line)
        ):
            self._wait(choice, place)
            return
        self._replica = replica
        gateway.take(replica)
        connection = replica.pool.take()
        if connection is not None:
            self._send(connection)
        else:
            self._connect(replica)

    def _connect(self, replica: Replica) -> None:
        self._deadline = self._gateway.loop.time() + self._gateway.settings.connect_timeout_s
        self._dial = Dial(replica.pool, self._gateway.loop, self._connected)

    def _connected(self, connection: UpstreamConnection | None, why: str) -> None:
        self._dial = None
        if connection is None or not connection.is_open:
            # An engine that takes a connection only to close it is as good as none.
            self._lost_unsent(why or "it closes new connections at once")
        else:
            self._send_if_right(connection)

    def _send_if_right(self, connection: UpstreamConnection) -> None:
        """Sends, unless a new table came while connecting: after its acknowledgement nothing may follow the old."""
        if self._gateway.table is not self._table:
            try:
                self._choose_again()
            except RefusedError as refusal:
                connection.close()
                self._refuse(refusal)
                return
            assert self._choice is not None
            if self._replica not in self._choice.arm.replicas:
                connection.close()
                self._leave_replica()
                self._again(Place.FIRST)
                return
        try:
            self._send(connection)
        except RefusedError as refusal:
            self._refuse(refusal)

    def _try_another(self) -> bool:
        """Asks another replica after one that could not be reached; False when the present table has none left."""
        assert self._ask is not None
        assert self._choice is not None
        assert self._replica is not None
        tried = self._tried | {self._replica}
        try:
            choice = choose_again(self._choice, self._gateway.table, self._ask.model)
        except RefusedError:
            return False
        if choice.arm.least_busy(tried) is None:
            return False
        self._tried = tried
        self._leave_replica()
        self._again(Place.FIRST)
        return True

    def _again(self, place: Place) -> None:
        """Another attempt, for a request that no engine has seen, by the present table."""
        try:
            self._choose_again()
            self._attempt(place)
        except RefusedError as refusal:
            self._refuse(refusal)

    def _choose_again(self) -> None:
        assert self._ask is not None
        assert self._choice is not None
        self._table = self._gateway.table
        before, self._choice = self._choice, choose_again(self._choice, self._table, self._ask.model)
        if self._choice.arm.arm is not before.arm.arm:
            self._leave_side()

    def _leave_side(self) -> None:
        """What it waited for so far, if it did, was the other side."""
        self._gateway.ledger.dropped(self._times)
        self._times.start()

    def _send(self, connection: UpstreamConnection) -> None:
        head, ask, choice, replica = self._head, self._ask, self._choice, self._replica
        assert ask is not None
        assert choice is not None
        assert replica is not None
        try:
            body = ask.body_for(replica.served_as[choice.model.adapter], replica.counts_usage)
        except RefusedError:
            connection.close()
            raise
        length = b"Content-Length: %d\r\n" % len(body) if body or head.method in _BODY_METHODS else b""
        passed = authorized(head.lines, replica.authorization) if replica.authorization else head.lines
        lines = b"%b %b HTTP/1.1\r\n%b%b%b\r\n" % (head.method, head.target, replica.host_line, passed, length)
        self._connection = connection
        self._sent_at = self._gateway.loop.time()
        self._deadline = self._sent_at + self._gateway.settings.reply_timeout_s
        connection.send(lines, body, self, head_request=head.method == b"HEAD")

    # waiting for a replica

    @property
    def size_bytes(self) -> int:
        return len(self._body)

    def _wait(self, choice: Choice, place: Place) -> None:
        """Joins the line of the chosen arm. Raises RefusedError when it is full."""
        line = choice.arm.line
        if not self._gateway.lines.join(line, self, place):
            if choice.arm.arm is Arm.CANARY and choice.cause is Cause.SPLIT and choice.model.stable.replicas:
                # A canary is one replica: that it is small must not cost anyone an answer.
                self._choice = Choice(choice.model, choice.model.stable, Cause.STAND_IN)
                self._leave_side()
                self._attempt(place)
                return
            self._gateway.ledger.turned_away(choice.arm.key)
            raise queue_full(choice)
        self._line = line
        self._times.wait()
        self._deadline = self._gateway.loop.time() + self._gateway.settings.reply_timeout_s

    def can_go(self) -> bool:
        assert self._choice is not None
        return self._choice.arm.has_room(self._gateway.settings.max_in_flight, self._tried)

    def go(self) -> None:
        self._line = None
        self._times.go()
        try:
            self._attempt(Place.FIRST)
        except RefusedError as refusal:
            self._refuse(refusal)

    def rechoose(self) -> None:
        """A new table came, and all lines are dissolved."""
        self._line = None
        self._times.go()
        self._tried = frozenset()
        self._again(Place.KEPT)

    def turn_away(self, refusal: RefusedError) -> None:
        """There will be no turn. The line is left already."""
        self._line = None
        self._times.go()
        assert self._choice is not None
        self._gateway.ledger.turned_away(self._choice.arm.key)
        self._refuse(refusal)

    def _time_out_unsent(self) -> bool:
        """Ends a wait for a replica or for a connection; False when there is neither."""
        if self._line is not None:
            assert self._choice is not None
            refusal = waited_too_long(self._choice, self._gateway.settings.reply_timeout_s)
            self._leave_line()
            self.turn_away(refusal)
            return True
        if self._dial is not None:
            self._dial.time_out()
            return True
        return False

    def _leave_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            self._gateway.lines.leave(line, self)
            # Whoever stood behind may use a replica that this one could not.
            self._gateway.lines.call(line)

    # ends

    def _drop_attempt(self) -> None:
        """Ends whatever the present attempt has open."""
        self._leave_line()
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._leave_replica()

    def _leave_replica(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            self._gateway.leave(replica)
