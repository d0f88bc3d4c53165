"""The systemd unit is one that systemd takes, and says what its restart relies on."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from llmgwd.foreground import parse
from tests.support.house import BIN, PROJECT

UNIT = PROJECT / "packaging" / "llmgwd.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_a_stop_ends_the_daemon_alone() -> None:
    found = service()
    assert found["KillMode"] == "process"
    options = parse(found["ExecStart"].split()[1:])
    assert options.leave_running
    assert str(options.socket).startswith(f"/run/{found['RuntimeDirectory']}/")
    assert found["Environment"] == f"LLMGW_STATE_DIR=/var/lib/{found['StateDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/llmgw/bin/llmgwd", str(BIN / "llmgwd")))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
