"""What `llmgw` exits with; scripts rely on these."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """The numbers are part of the contract with scripts and never change their meaning."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNKNOWN = 4
    ROLLED_BACK = 5
    NO_DAEMON = 69
    NOT_PERMITTED = 77
    INTERRUPTED = 130
