"""The one error that reaches a person: a code for programs, words for people, and what to do next."""

from llmgwd.protocol.exit_status import ExitStatus


class LlmgwError(Exception):
    """Something was refused or failed.

    `message` says what and why, `hint` what to do next, `status` what the command line exits with.
    """

    def __init__(self, code: str, message: str, *, hint: str = "", status: ExitStatus = ExitStatus.FAILED) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.status = status


def refused(code: str, message: str, *, hint: str = "") -> LlmgwError:
    """The present state does not allow it."""
    return LlmgwError(code, message, hint=hint, status=ExitStatus.REFUSED)


def unknown(code: str, message: str, *, hint: str = "") -> LlmgwError:
    """There is no such model or job."""
    return LlmgwError(code, message, hint=hint, status=ExitStatus.UNKNOWN)


def unusable(code: str, message: str, *, hint: str = "") -> LlmgwError:
    """What was asked for can never be right, whatever the state."""
    return LlmgwError(code, message, hint=hint, status=ExitStatus.USAGE)
