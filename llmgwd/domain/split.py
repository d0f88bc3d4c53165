"""Which requests a canary is given: exact counts without a session key, sticky arms with one."""

from hashlib import blake2b

WHOLE = 10**11
"""The parts that 100 % is made of: a share is known to a billionth of a percent, and sums of it never round."""

_HASH_RANGE = 1 << 64


def parts(share: float) -> int:
    """A share in percent as parts of WHOLE; outside 0–100 it is taken as the nearer end."""
    return min(WHOLE, max(0, round(share * (WHOLE // 100))))


def phase(worker: str, model: str) -> int:
    """Where a worker starts in a model's cycle, in [0, WHOLE), so that workers do not send to the canary in step."""
    return _hash(worker, model.encode()) * WHOLE // _HASH_RANGE


def advance(phase: int, share_parts: int) -> tuple[bool, int]:
    """Whether the next request without a session key goes to the canary, and the phase after it.

    The canary is given a request whenever the running sum of shares passes a whole number. So over any run of
    requests its count is less than one off the sum of their shares, also while the share changes.
    """
    total = phase + share_parts
    return total >= WHOLE, total % WHOLE


def sticks_to_canary(model: str, key: bytes, share_parts: int) -> bool:
    """Whether a session goes to the canary: the same answer in every worker and every life of one.

    Raising the share moves keys only to the canary, lowering it only back.
    """
    return _hash(model, key) * WHOLE < share_parts * _HASH_RANGE


def _hash(name: str, key: bytes) -> int:
    # The name's length keeps ("ab", "c") apart from ("a", "bc").
    encoded = name.encode()
    digest = blake2b(len(encoded).to_bytes(4, "big") + encoded + key, digest_size=8).digest()
    return int.from_bytes(digest, "big")
