from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from llmgwd.dataplane.bench import Bench
from llmgwd.domain.canary import Canary
from llmgwd.domain.catalog import Origin
from llmgwd.domain.plan import Progress
from llmgwd.protocol.samples import Arm, ArmSample, LoadSample, LookSample
from llmgwd.protocol.states import CanaryPhase
from llmgwd.store.store import Store
from llmgwd.verdict.decision import State, Wait
from llmgwd.verdict.evidence import WARM_UP
from llmgwd.verdict.load import LoadFigures, Slots
from llmgwd.verdict.scale import cell

LOOK_S = 30
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = int(BEGAN.timestamp()) // LOOK_S
ORIGIN = Origin(repo="a/b", revision="1" * 40)
CANARY = Canary("c", "chat", ORIGIN, ORIGIN, 50.0, "ann", BEGAN, CanaryPhase.SERVING, progress=Progress(BEGAN))
ONLY_SPEED = dict.fromkeys(("bad_answers", "ttft", "length_limited", "degenerate", "rejected"))
SLOTS = Slots(canary=4, stable=4)


def at(look: int) -> datetime:
    """Shortly after a look of the canary's life began."""
    return BEGAN + timedelta(seconds=look * LOOK_S + 6)


def serve(bench: Bench, look: int, held_s: dict[Arm, float], token_s: dict[Arm, float]) -> None:
    """One look's reports, and the looks before it closed."""
    count = WARM_UP
    for arm in Arm:
        times = {cell(token_s[arm]): count}
        sample = LookSample("c", arm, FIRST + look, 50.0, arrived=count, ended=count, token_time=times)
        bench.add([sample])
        load = LoadSample("c", arm, FIRST + look, held_s=held_s[arm], busy_s=held_s[arm])
        bench.add_loads([load], [ArmSample("chat", arm, "r", "c", completion_tokens=600)])
    bench.close_looks(CANARY, at(look + 1), stable_down=False, slots=SLOTS)


UNEVEN = {Arm.STABLE: 4.0 * LOOK_S, Arm.CANARY: 0.2 * LOOK_S}
EVEN = {Arm.STABLE: 4.0 * LOOK_S, Arm.CANARY: 3.0 * LOOK_S}
QUICK = {Arm.STABLE: 0.05, Arm.CANARY: 0.02}


def opened(store: Store) -> Bench:
    store.canaries.put(CANARY)
    bench = Bench(store.canaries)
    bench.open("c", ONLY_SPEED, LOOK_S)
    return bench


def test_loads_are_measured_where_times_are_judged_and_survive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    bench = opened(store)
    for look in range(6):
        serve(bench, look, UNEVEN, QUICK)
    canary, stable = bench.load("c")
    assert (canary.in_flight, canary.busy, canary.tokens_per_s) == pytest.approx((0.2, 0.05, 20))
    assert (stable.in_flight, stable.busy, stable.tokens_per_s) == pytest.approx((4, 1, 20))
    with store.transaction():
        bench.write()
    store.close()
    again = Store(tmp_path / "llmgw.db")
    assert Bench(again.canaries).load("c") == (canary, stable)
    again.close()


def test_a_quick_canary_that_idles_beside_a_full_stable_is_not_fine_unless_that_is_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    bench = opened(store)
    for look in range(200):
        serve(bench, look, UNEVEN, QUICK)
    held = bench.decide(CANARY, at(200), 0.0)
    assert held is not None
    assert (held.state, held.waits) == (State.UNDECIDED, (Wait.LOAD,))
    lifted = bench.decide(msgspec.structs.replace(CANARY, ignores_load=True), at(200), 0.0)
    assert lifted is not None
    assert lifted.state is State.FINE
    for look in range(200, 300):
        serve(bench, look, EVEN, QUICK)
    even = bench.decide(CANARY, at(300), 0.0)
    assert even is not None
    assert even.state is State.FINE
    store.close()


def test_worse_is_final_though_stable_turns_out_to_fail_as_well_and_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    store.canaries.put(CANARY)
    bench = Bench(store.canaries)
    bench.open("c", {}, LOOK_S)
    for look in range(20):
        bench.add([LookSample("c", arm, FIRST + look, 50.0, arrived=40, ended=40) for arm in Arm])
        bench.close_looks(CANARY, at(look + 1), stable_down=False, slots=SLOTS)
    bench.add([LookSample("c", Arm.CANARY, FIRST + 20, 50.0, arrived=30, ended=30, bad=30)])
    found = bench.decide(CANARY, at(20), 0.0)
    assert found is not None
    assert found.state is State.WORSE
    said = bench.report(CANARY, at(20), 0.0)
    bench.add([LookSample("c", Arm.STABLE, FIRST + 20, 50.0, arrived=30, ended=30, bad=30)])
    for look in range(21, 60):
        bench.add([LookSample("c", arm, FIRST + look, 50.0, arrived=40, ended=40) for arm in Arm])
        bench.close_looks(CANARY, at(look + 1), stable_down=False, slots=SLOTS)
    changed, _ = bench.with_limits("c", {"bad_answers": 90.0})
    assert changed is not None
    bench.replace("c", changed)
    assert bench.decide(CANARY, at(60), 0.0) == found
    with store.transaction():
        bench.write()
    bench.written()
    store.close()
    again = Store(tmp_path / "llmgw.db")
    after = Bench(again.canaries).report(CANARY, at(60), 0.0)
    again.close()
    assert said is not None
    assert after is not None
    assert (after.state, after.sentence, after.metrics) == (State.WORSE, said.sentence, said.metrics)


def test_what_comes_of_a_canary_that_ended_is_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    bench = opened(store)
    with store.transaction():
        store.canaries.put(msgspec.structs.replace(CANARY, phase=CanaryPhase.ABORTED))
    bench.forget("c")
    bench.add_loads([LoadSample("c", Arm.CANARY, FIRST, 30.0)], [ArmSample("chat", Arm.CANARY, "r", "c")])
    bench.add_loads([LoadSample("nobody", Arm.CANARY, FIRST, 30.0)], [])
    assert bench.load("c") == (LoadFigures(), LoadFigures())
    store.close()


def test_limits_that_could_not_be_written_are_not_judged_by(tmp_path: Path) -> None:
    store = Store(tmp_path / "llmgw.db")
    bench = opened(store)
    evidence, changed = bench.with_limits("c", {"ttft": 50.0})
    assert changed == ("ttft",)
    assert evidence is not None
    assert bench.limits("c")["ttft"] is None
    bench.replace("c", evidence)
    assert bench.limits("c")["ttft"] == 50.0
    store.close()
