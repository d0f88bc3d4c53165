"""The daemon's own life: started, refused, stopped, killed, started again."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.house import BIN, FILE, House, add_chat, commit, free_port, house_on, wait_until
from tests.support.toy_engine import Behaviour


def test_nothing_is_left_running_after_sigterm(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="newer"))
    house.ok("model", "canary", "chat")
    assert len(house.engine_pids()) == 2
    assert house.stop() == 0
    assert house.engine_pids() == set()
    assert not house.socket.exists()


def test_model_and_canary_are_served_again_after_a_restart(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="newer"))
    house.ok("model", "canary", "chat", "--percent", "50")
    for _ in range(10):
        house.ask()
    wait_until(lambda: (found := house.canary()) and found["canary"]["requests"] == 5)
    house.stop()
    house.start()
    wait_until(lambda: house.model()["ready"] == 1)
    canary = wait_until(lambda: (found := house.canary()) and found["phase"] == "serving" and found)
    assert canary["share"] == 50
    assert canary["canary"]["requests"] == 5
    wait_until(lambda: house.ask()[0] == "canary")


def test_after_kill_9_the_next_start_goes_on_with_what_runs_and_with_its_jobs(house: House) -> None:
    add_chat(house)
    commit(house, Behaviour(words="newer", load_s=600))
    job = house.ok("model", "canary", "chat", "--detach").split()[-1]
    wait_until(lambda: len(house.engine_pids()) == 2)
    # It writes a process down before it answers anybody again; one that was not written down would be ended.
    house.ok("status")
    left = house.engine_pids()
    house.stop(signal.SIGKILL)
    assert house.engine_pids() == left
    house.start()
    assert house.model()["ready"] == 1
    assert house.json("jobs", "show", job)["state"] == "running"
    assert house.engine_pids() == left
    assert house.ask()[0] == "stable"


def test_a_process_that_was_that_a_killed_daemon_left_is_ended_whatever_it_is(house: House) -> None:
    house.stop(signal.SIGKILL)
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**house.env, "LLMGW_CHILD_OF": str(house.state.resolve())},
        start_new_session=True,
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**house.env, "LLMGW_CHILD_OF": str(house.state.resolve()) + "-of-another"},
        start_new_session=True,
    )
    try:
        house.start()
        assert left.wait(10) == -signal.SIGTERM
        assert other.poll() is None
    finally:
        left.kill()
        other.kill()
        other.wait()


def test_the_service_manager_is_told_once_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with house_on(tmp_path):
            assert manager.recv(100) == b"READY=1"


def test_a_second_daemon_on_the_same_state_is_refused_and_harms_nothing(house: House) -> None:
    add_chat(house)
    serving = house.engine_pids()
    for env, says in (
        (house.env, "another llmgwd listens on"),
        ({**house.env, "LLMGW_SOCKET": str(house.root / "other.sock")}, "another llmgwd uses the state folder"),
    ):
        second = subprocess.run(
            [BIN / "llmgwd", "--config", house.config], env=env, capture_output=True, text=True, timeout=20
        )
        assert second.returncode == 1
        assert says in second.stderr
        assert "Traceback" not in second.stderr
    assert house.ok("status")
    assert house.engine_pids() == serving


def test_a_stale_socket_file_is_not_in_the_way(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        import socket

        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(house.socket))
        assert house.socket.exists()
        house.start()
        assert house.ok("status")


@pytest.mark.parametrize("port", ["gateway", "admin"])
def test_an_address_in_use_is_said_so(tmp_path: Path, port: str) -> None:
    import socket

    with house_on(tmp_path, started=False) as house, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        house.settings[port]["listen"] = taken
        with pytest.raises(AssertionError, match=f"{port}.listen {taken} cannot be listened on"):
            house.start()
        house.process = None


def test_a_bad_configuration_is_refused_with_status_2(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("gateway: {listen: here}\n")
    done = subprocess.run([BIN / "llmgwd", "--config", config], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "gateway.listen is 'here'" in done.stderr


def test_a_reload_brings_declared_models_and_a_bad_one_changes_nothing(house: House) -> None:
    weights = house.root / FILE
    weights.write_bytes(Behaviour(words="declared").weights())
    declared = {"name": "base", "path": str(weights), "engine": "toy"}
    house.reload({**house.settings, "models": [declared]})
    wait_until(lambda: house.ctl("model", "show", "base").returncode == 0 and house.model("base")["ready"] == 1)
    pids = house.engine_pids()
    house.reload({**house.settings, "models": [declared, {"name": "base", "path": "/x"}]})
    wait_until(lambda: "not reloaded" in house.log.read_text())
    house.reload({**house.settings, "gateway": {"listen": f"127.0.0.1:{free_port()}"}})
    wait_until(lambda: "takes a restart" in house.log.read_text())
    assert house.engine_pids() == pids
    assert house.ask("base")[1]["choices"][0]["message"]["content"] == "declared"
    house.reload({**house.settings, "models": [{**declared, "path": "/no/such.gguf"}]})
    wait_until(lambda: "no such file or folder" in house.log.read_text())
    changed = house.root / "changed.gguf"
    changed.write_bytes(Behaviour(words="changed", load_s=1).weights())
    house.reload({**house.settings, "models": [{**declared, "path": str(changed)}]})
    while (said := house.ask("base")[1]["choices"][0]["message"]["content"]) != "changed":
        assert said == "declared"
    wait_until(lambda: not house.engine_pids() & pids)
    house.reload()
    wait_until(lambda: house.ctl("model", "show", "base").returncode == 4)
    wait_until(lambda: house.engine_pids() == set())


def test_a_replica_that_dies_is_restarted(house: House) -> None:
    add_chat(house)
    (pid,) = house.engine_pids()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: house.engine_pids() - {pid})
    wait_until(lambda: house.model()["ready"] == 1)
    assert house.ask()[0] == "stable"


def test_a_gateway_worker_that_dies_is_replaced(house: House) -> None:
    add_chat(house)
    pids = [
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if b"llmgwd.gateway.worker" in (line := read(entry)) and str(house.state).encode() in line
    ]
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)

    def answered() -> bool:
        try:
            return house.ask()[0] == "stable"
        except OSError:
            return False

    wait_until(answered)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_several_workers_share_one_address_and_all_follow_a_verb(tmp_path: Path) -> None:
    with house_on(tmp_path, started=False) as house:
        house.settings["gateway"]["workers"] = 2
        house.start()
        assert house.json("status")["workers"] == 2
        add_chat(house)
        commit(house, Behaviour(words="newer"))
        house.ok("model", "canary", "chat", "--percent", "100")
        assert {house.ask()[0] for _ in range(30)} == {"canary"}
        house.ok("model", "abort", "chat")
        assert {house.ask()[0] for _ in range(30)} == {"stable"}


def test_remove_takes_the_model_away(house: House) -> None:
    add_chat(house)
    house.ok("model", "remove", "chat", "--yes")
    assert house.json("model", "list") == []
    assert house.engine_pids() == set()
    with pytest.raises(urllib.error.HTTPError) as raised:
        house.ask()
    assert raised.value.code == 404


def test_a_job_can_be_cancelled(house: House) -> None:
    commit(house, Behaviour(load_s=600))
    job = house.ok("model", "add", "chat", "--repo", "acme/chat-GGUF", "--engine", "toy", "--detach").split()[-1]
    wait_until(lambda: house.engine_pids())
    assert "cancelled" in house.ok("jobs", "cancel", job)
    assert house.json("model", "list") == []
    assert house.engine_pids() == set()
    again = house.ctl("jobs", "cancel", job)
    assert again.returncode == 3
    assert "already ended" in again.stderr


def test_the_admin_port_says_whether_the_house_is_well(house: House) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{house.admin_port}/health", timeout=5) as reply:
        assert reply.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{house.admin_port}/metrics", timeout=5) as reply:
        assert b"llmgw_gateway_workers 1.0" in reply.read()
    with urllib.request.urlopen(f"http://127.0.0.1:{house.admin_port}/status", timeout=5) as reply:
        assert b'"models":[]' in reply.read()


def test_api_keys_are_asked_for_when_there_is_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# who\nsecret-key\n")
    with house_on(tmp_path, started=False) as house:
        house.settings["gateway"]["api_keys_file"] = str(keys)
        house.start()
        add_chat(house)
        with pytest.raises(urllib.error.HTTPError) as raised:
            house.ask()
        assert raised.value.code == 401
        assert house.ask(headers={"authorization": "Bearer secret-key"})[0] == "stable"
