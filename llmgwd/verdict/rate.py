"""How many requests come, lately: an average over wall time that forgets, and is right from its first look."""

from dataclasses import dataclass

LOOKS = 60.0
"""Looks that it is averaged over."""


@dataclass
class Rate:
    """Both sums forget alike, so that their ratio is an average from the start."""

    requests: float = 0.0
    looks: float = 0.0
    at: int | None = None
    """The look up to which `looks` counts."""

    @property
    def value(self) -> float:
        """Requests a look; 0 before any."""
        return self.requests / self.looks if self.looks else 0.0

    def pass_to(self, look: int, first: int) -> None:
        """Lets time pass to the beginning of `look`; first: the look that the first request came in."""
        passed = look - first if self.at is None else look - self.at
        self.at = look
        if passed <= 0:  # The clock was set back, or the look is the same.
            return
        kept = (1.0 - 1.0 / LOOKS) ** passed
        self.requests *= kept
        self.looks = self.looks * kept + LOOKS * (1.0 - kept)

    def add(self, requests: int) -> None:
        self.requests += requests
