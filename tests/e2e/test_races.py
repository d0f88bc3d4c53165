"""Verbs against each other and against every step of every job: one story comes out, and everyone is told which."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from llmgwd.domain.jobs import STEPS
from llmgwd.domain.recovery import WAY_BACK, WayBack
from llmgwd.protocol.states import JobKind
from tests.e2e.test_load_and_races import in_parallel
from tests.support.house import REPO, House, add_chat, commit, house_on, wait_until
from tests.support.pausing_daemon import Pauses
from tests.support.toy_engine import Behaviour

REQUEST = b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{"model":"chat"}'
EVERY_STEP = [pytest.param(kind, step, id=f"{kind} {step}") for kind, steps in STEPS.items() for step in steps]


class Scene:
    """One house for many races, with the model `chat` in it; each race leaves it as it should be found."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.pauses = Pauses(house)
        self._commits = 0

    def newer(self, **behaviour: Any) -> None:
        self._commits += 1
        commit(self.house, Behaviour(words=f"words {self._commits}", **behaviour))

    def prepare(self, kind: JobKind) -> tuple[str, ...]:
        """Brings about what this kind of job needs; the verb that starts it."""
        if kind is JobKind.ADD:
            return ("model", "add", "extra", "--repo", REPO, "--engine", "toy")
        if kind is JobKind.REMOVE:
            self.house.ok("model", "add", "extra", "--repo", REPO, "--engine", "toy")
            return ("model", "remove", "extra", "--yes")
        self.newer()
        if kind is JobKind.PROMOTE:
            self.house.ok("model", "canary", "chat", "--percent", "20")
        if kind is JobKind.ROLLBACK:
            self.house.ok("model", "update", "chat")
        return ("model", str(kind), "chat")

    def paused(self, kind: JobKind, step: str) -> str:
        """A job of this kind that waits at this step; its id."""
        verb = self.prepare(kind)
        self.pauses.at(kind, step)
        job = self.house.ok(*verb, "--detach").split()[-1]
        self.pauses.wait_reached()
        return job

    def ended(self, job: str) -> str:
        self.pauses.let_go()
        return str(wait_until(lambda: (shown := self.house.json("jobs", "show", job))["ended"] and shown["state"]))

    def origin(self) -> Any:
        return self.house.model()["origin"]

    def check_whole(self) -> None:
        """One stable replica that answers, a canary's if there is one, and nothing else."""
        canary = self.house.canary()
        assert canary is None or canary["phase"] == "serving"
        models = self.house.json("model", "list")
        assert all(model["ready"] == model["wanted"] == len(model["replicas"]) for model in models)
        assert len(self.house.engine_pids()) == len(models) + (canary is not None)
        said = self.house.ask(headers={"x-llmgw-arm": "stable"})[1]["choices"][0]["message"]["content"]
        assert said.startswith("words") or said == Behaviour().words

    def clear(self) -> None:
        self.pauses.let_go()
        wait_until(lambda: not self.house.json("status")["jobs"])
        if self.house.canary() is not None:
            self.house.ok("model", "abort", "chat")
        if self.house.ctl("model", "show", "extra").returncode == 0:
            self.house.ok("model", "remove", "extra", "--yes")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with house_on(tmp_path_factory.mktemp("races"), started=False) as house:
        scene = Scene(house)
        house.start()
        add_chat(house)
        yield scene


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    yield shared
    shared.clear()


@pytest.mark.parametrize(("kind", "step"), EVERY_STEP)
def test_a_job_is_cancelled_and_undone_at_every_step_before_its_point_of_no_return(
    scene: Scene, kind: JobKind, step: str
) -> None:
    job = scene.paused(kind, step)
    before = scene.house.json("model", "show", "chat")["previous"] if kind is JobKind.UPDATE else None
    cancel = scene.house.ctl("jobs", "cancel", job)
    if WAY_BACK[kind, step] is WayBack.CLOSED:
        assert cancel.returncode == 3
        assert "cannot be stopped any more" in cancel.stderr
        assert scene.ended(job) == "done"
    else:
        assert cancel.returncode == 0, cancel.stderr
        assert scene.ended(job) == "cancelled"
    if before is not None and step == "repository":
        assert scene.house.model()["previous"] == before
    scene.check_whole()


@pytest.mark.parametrize("step", STEPS[JobKind.CANARY])
def test_abort_wins_over_a_canary_at_every_step(scene: Scene, step: str) -> None:
    before = scene.origin()
    job = scene.paused(JobKind.CANARY, step)
    assert "is out" in scene.house.ok("model", "abort", "chat")
    assert scene.ended(job) == "cancelled"
    assert scene.house.canary() is None
    assert scene.origin() == before
    scene.check_whole()


@pytest.mark.parametrize("step", STEPS[JobKind.PROMOTE])
def test_abort_wins_over_a_promotion_until_that_has_committed(scene: Scene, step: str) -> None:
    before = scene.origin()
    job = scene.paused(JobKind.PROMOTE, step)
    abort = scene.house.ctl("model", "abort", "chat")
    if step == "catalog":
        assert abort.returncode == 0, abort.stderr
        assert scene.ended(job) == "cancelled"
        assert scene.origin() == before
    else:
        assert abort.returncode == 3
        assert "already promoted" in abort.stderr
        assert "rollback chat" in abort.stderr
        assert scene.ended(job) == "done"
        assert scene.origin() != before
    assert scene.house.canary() is None
    scene.check_whole()


@pytest.mark.parametrize("kind", JobKind)
def test_a_reload_disturbs_no_job(scene: Scene, kind: JobKind) -> None:
    house = scene.house
    job = scene.paused(kind, STEPS[kind][-1])
    reloads = house.log.read_text().count("configuration reloaded")
    house.reload()
    wait_until(lambda: house.log.read_text().count("configuration reloaded") > reloads)
    assert scene.ended(job) == "done"
    scene.check_whole()


@pytest.mark.parametrize(
    "verbs",
    [
        pytest.param(("canary", "update"), id="canary and update"),
        pytest.param(("update", "update"), id="two updates"),
        pytest.param(("canary", "rollback"), id="canary and rollback"),
    ],
)
def test_of_two_verbs_at_once_exactly_one_wins_and_the_other_is_told_why(scene: Scene, verbs: tuple[str, str]) -> None:
    scene.newer()
    scene.house.ok("model", "update", "chat")
    scene.newer(load_s=1.0)
    results = in_parallel(scene.house, *[("model", verb, "chat") for verb in verbs])
    assert sorted(status for status, _ in results) == [0, 3]
    assert all("has a running job" in said or "has a canary" in said for status, said in results if status)
    scene.check_whole()


def test_of_two_promotions_at_once_one_wins(scene: Scene) -> None:
    scene.prepare(JobKind.PROMOTE)
    results = in_parallel(scene.house, *[("model", "promote", "chat")] * 2)
    assert sorted(status for status, _ in results) == [0, 3]
    scene.check_whole()


@pytest.mark.parametrize("step", ["weights", "placement", None])
def test_a_model_with_a_canary_is_not_removed(scene: Scene, step: str | None) -> None:
    if step is None:
        scene.prepare(JobKind.PROMOTE)
    else:
        scene.paused(JobKind.CANARY, step)
    refused = scene.house.ctl("model", "remove", "chat", "--yes")
    assert refused.returncode == 3
    assert "has a running job" in refused.stderr or "has a canary" in refused.stderr
    assert scene.house.ask()[1]["model"] == "chat"


def test_a_share_that_is_changed_while_the_canary_drains_is_refused_and_gives_it_nothing(scene: Scene) -> None:
    house = scene.house
    scene.newer(hangs_after=2)
    house.ok("model", "canary", "chat", "--percent", "100")
    with socket.create_connection(("127.0.0.1", house.gateway_port)) as client:
        client.sendall(REQUEST)
        wait_until(lambda: house.in_flight("chat", "canary") == 1)
        abort = house.begin("model", "abort", "chat")
        wait_until(lambda: (found := house.canary()) and found["phase"] == "removing")
        refused = house.ctl("model", "percent", "chat", "100")
        assert {house.ask()[0] for _ in range(5)} == {"stable"}
    assert refused.returncode == 3
    assert "being taken out" in refused.stderr
    assert abort.wait(30) == 0
    assert {house.ask()[0] for _ in range(5)} == {"stable"}
    scene.check_whole()
