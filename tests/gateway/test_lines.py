from llmgwd.gateway.answers import RefusedError
from llmgwd.gateway.lines import LineKey, Lines, Place
from llmgwd.protocol.samples import Arm

STABLE: LineKey = ("chat", Arm.STABLE)
CANARY: LineKey = ("chat", Arm.CANARY)


class Someone:
    """Goes when it may, and notes that it did."""

    def __init__(self, name: str, gone: list[str], size_bytes: int = 1) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.may_go = True
        self._gone = gone

    def can_go(self) -> bool:
        return self.may_go

    def go(self) -> None:
        self._gone.append(self.name)

    def rechoose(self) -> None:
        raise AssertionError("nobody asked")

    def turn_away(self, refusal: RefusedError) -> None:
        raise AssertionError("nobody asked")


def test_first_come_first_served_until_one_cannot_go() -> None:
    gone: list[str] = []
    lines = Lines(10, 100)
    everyone = [Someone(name, gone) for name in "abcd"]
    for each in everyone:
        assert lines.join(STABLE, each, Place.NEW)
    everyone[2].may_go = False
    lines.call(STABLE)
    assert gone == ["a", "b"]
    assert lines.lengths() == {STABLE: 2}
    lines.leave(STABLE, everyone[2])
    lines.call(STABLE)
    assert gone == ["a", "b", "d"]
    assert (lines.count, lines.is_empty(STABLE)) == (0, True)


def test_each_line_has_its_bound_and_all_share_one_of_bytes() -> None:
    lines = Lines(2, 10)
    assert lines.join(STABLE, Someone("a", []), Place.NEW)
    assert lines.join(STABLE, Someone("b", []), Place.NEW)
    assert not lines.join(STABLE, Someone("c", []), Place.NEW)
    assert lines.join(CANARY, Someone("d", [], 8), Place.NEW)
    assert not lines.join(CANARY, Someone("e", []), Place.NEW)
    # Who has been let in once is not turned away.
    assert lines.join(STABLE, Someone("f", []), Place.KEPT)
    assert lines.join(STABLE, Someone("g", []), Place.FIRST)
    assert lines.count == 5


def test_dissolving_keeps_the_order_of_coming_over_all_lines() -> None:
    gone: list[str] = []
    lines = Lines(10, 100)
    for name, key, place in (
        ("b", STABLE, Place.NEW),
        ("c", CANARY, Place.NEW),
        ("d", STABLE, Place.NEW),
        ("a", STABLE, Place.FIRST),
        ("e", CANARY, Place.KEPT),
    ):
        assert lines.join(key, Someone(name, gone), place)
    for each in lines.dissolve():
        each.go()
    assert gone == ["a", "b", "c", "d", "e"]
    assert (lines.count, lines.lengths()) == (0, {})


def test_a_queue_of_nothing_lets_nobody_wait() -> None:
    assert not Lines(0, 100).join(STABLE, Someone("a", []), Place.NEW)
