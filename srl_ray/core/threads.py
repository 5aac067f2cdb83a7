"""How many math threads the user asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping


def told_threads(variables: Mapping[str, str] = os.environ) -> int | None:
    """What OMP_NUM_THREADS says, as it does in every worker; None where it says no number above 0."""
    said = variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(said) if said.isdigit() and int(said) else None
