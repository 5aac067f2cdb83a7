"""Seeds: every user of randomness derives its own from the run's base seed and what it is."""

from __future__ import annotations

import hashlib


def derive_seed(base: int, *path: str | int) -> int:
    """A 63-bit seed that is a fixed function of the base seed and the path, and unlike that of any other path.

    Example:
        derive_seed(config.run.seed, "env", worker_index, slot)
    """
    text = ":".join(str(part) for part in (base, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
