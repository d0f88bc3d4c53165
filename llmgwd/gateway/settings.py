"""What a worker may be told at its start; every limit and deadline of the data plane."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are seconds, sizes bytes."""

    worker_id: str
    max_body_bytes: int = 32 * 1024 * 1024
    max_head_bytes: int = 64 * 1024
    ahead_bytes: int = 128 * 1024
    """What a client may send behind a request before its answer, and that in one piece of reading more."""
    max_connections: int = 10_000
    """Of clients; the next one is answered 503 and closed."""
    max_in_flight: int = 256
    """Requests at once on each replica."""
    queue: int = 1024
    """Requests that wait for a replica, for each arm of each model."""
    queue_bytes: int = 256 * 1024 * 1024
    """The bodies of all that wait; or one body of the largest size, if that is more."""
    head_timeout_s: float = 15.0
    """From a request's first byte to the end of its head."""
    body_timeout_s: float = 60.0
    """Without any byte of a request body, and for all of it, but for a second more a `body_rate` that came."""
    body_rate: int = 1024
    """Bytes a second: what comes more slowly is timed out although it never stops."""
    idle_timeout_s: float = 75.0
    """A client's connection between requests."""
    connect_timeout_s: float = 5.0
    reply_timeout_s: float = 600.0
    """To the engine's first byte, and without any byte after it: long prompts are read in silence. Also in a line."""
    upstream_idle_s: float = 4.0
    # Engines on uvicorn or cpp-httplib close after 5 s of idleness; being first avoids the race.
    upstream_idle_connections: int = 256
    """Idle connections kept for each replica."""
    report_every_s: float = 0.5
    drain_s: float = 30.0
    """For SIGTERM; a `Finish` brings its own."""
