"""What the command line gives up with: words for stderr, a code and a status for scripts."""

from llmgwd.protocol.exit_status import ExitStatus


class CommandError(Exception):
    """The command cannot go on; `status` is what it exits with."""

    def __init__(
        self, message: str, hint: str = "", status: ExitStatus = ExitStatus.FAILED, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status
        self.code = code or status.name.lower()
        self.documented = False
        """Whether stdout already has the one document that says it, such as the failed job."""


class DaemonGoneError(CommandError):
    """The daemon closed the connection or is not there."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, ExitStatus.NO_DAEMON)


class InterruptedByUserError(CommandError):
    """Ctrl-C; what was under way in the daemon goes on."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, ExitStatus.INTERRUPTED)
