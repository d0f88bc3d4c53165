"""`python -m llmgw_ctl` is `llmgw`."""

from llmgw_ctl.main import run

run()
