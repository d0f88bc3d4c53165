"""Reports to the daemon: one on its way at most, the rest adding up; so memory is constant and nothing is lost."""

from llmgwd.gateway.state import Gateway
from llmgwd.protocol.link import LineLength, Report


class Reports:
    """Numbers the reports and keeps the one that is not acknowledged.

    A report never changes once it has a number: the daemon may have stored it although its answer was lost.
    """

    __slots__ = ("_gateway", "_is_sent", "_seq", "_told_in_flight", "_told_lines", "_unacknowledged")

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._seq = 0
        self._unacknowledged: Report | None = None
        self._is_sent = False
        """Whether that one went out on the present link."""
        self._told_in_flight: dict[str, int] | None = None
        """What the daemon on the present link last heard; None when it heard nothing."""
        self._told_lines: tuple[LineLength, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether the daemon has all that there is to tell."""
        return self._unacknowledged is None and not self._gateway.ledger and not self._gateway.loads

    @property
    def is_on_its_way(self) -> bool:
        """Whether there is one that was not taken yet."""
        return self._unacknowledged is not None

    def linked(self) -> None:
        """A link is up, perhaps to another life of the daemon: what was not taken is `next` again.

        Not at once: if the daemon cannot take it and ends the link, it must have heard before that the routes, which it
        sends first, are followed.
        """
        self._told_in_flight = None
        self._told_lines = ()
        self._is_sent = False

    def taken(self, seq: int) -> None:
        """The daemon has everything up to `seq`."""
        if self._unacknowledged is not None and seq >= self._unacknowledged.seq:
            self._unacknowledged = None

    def in_flight(self) -> dict[str, int]:
        """What is in flight now, to be told at once outside a report."""
        self._told_in_flight = self._gateway.in_flight()
        return self._told_in_flight

    def next(self) -> Report | None:
        """The report to send now; None while one is on its way, or when there is nothing new."""
        gateway = self._gateway
        if self._unacknowledged is not None:
            again = None if self._is_sent else self._unacknowledged
            self._is_sent = True
            return again
        in_flight = gateway.in_flight()
        lines = tuple(LineLength(*key, waiting) for key, waiting in gateway.lines.lengths().items())
        is_same = in_flight == self._told_in_flight and lines == self._told_lines
        is_told = not gateway.ledger and not gateway.loads and not gateway.has_drained and not gateway.has_heard
        if is_same and is_told:
            return None
        self._seq += 1
        gateway.forget_drained()
        self._told_in_flight = gateway.in_flight()
        self._told_lines = lines
        self._is_sent = True
        self._unacknowledged = Report(
            seq=self._seq,
            routes_version=gateway.table.version if gateway.table is not None else 0,
            in_flight=in_flight,
            samples=gateway.ledger.take(),
            looks=gateway.ledger.looks.take(),
            loads=gateway.loads.take(),
            lines=lines,
            heard=gateway.take_heard(),
        )
        return self._unacknowledged
