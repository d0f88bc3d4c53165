"""What a worker may be told at its start; every limit and deadline of the data plane."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are seconds, sizes bytes."""

    worker_id: str
    max_body_bytes: int = 32 * 1024 * 1024
    max_head_bytes: int = 64 * 1024
    head_timeout_s: float = 15.0
    """From a request's first byte to the end of its head."""
    body_timeout_s: float = 60.0
    """Without any byte of a request body."""
    idle_timeout_s: float = 75.0
    """A client's connection between requests."""
    connect_timeout_s: float = 5.0
    reply_timeout_s: float = 600.0
    """To the engine's first byte, and without any byte after it: long prompts are read in silence."""
    upstream_idle_s: float = 4.0
    # Engines on uvicorn or cpp-httplib close after 5 s of idleness; being first avoids the race.
    upstream_idle_connections: int = 256
    """Idle connections kept for each replica."""
    report_every_s: float = 0.5
    drain_s: float = 30.0
    """For SIGTERM; a `Finish` brings its own."""
