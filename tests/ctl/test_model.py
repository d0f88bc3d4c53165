"""What is said while the hub is asked."""

from tests.ctl.program import llmgw
from tests.ctl.scripted_daemon import ScriptedDaemon


def test_updates_tells_of_answers_as_they_come_and_of_local_weights_only_in_the_table(daemon: ScriptedDaemon) -> None:
    told = llmgw("ctl", "model", "updates", socket=daemon.path)
    assert told.stderr == "chat: weights\n"
    assert told.stdout.count("local weights") == 1
