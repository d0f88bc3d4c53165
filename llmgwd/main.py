"""`llmgwd`, the console script: what has to hold before anything of the daemon is imported."""

import signal
import sys


def run() -> int:
    """The exit status; see `llmgwd.foreground.run`."""
    # SIGHUP would end a process that has no handler yet, and the imports take a while. A reload that is asked for
    # meanwhile is kept by the system until the daemon takes signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from llmgwd import foreground

    return foreground.run()


if __name__ == "__main__":
    sys.exit(run())
