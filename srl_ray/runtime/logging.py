"""Logging in one place: every line says which role and which index wrote it; repeats are counted, not printed."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = "srl_ray"


def setup_logging(
    role: str, index: int | None = None, *, level: int | str = logging.INFO, file: Path | str | None = None
) -> None:
    """Configure the project's logger in this process (never the root logger, which is the user's). May be repeated.

    Args:
        role: `driver`, `actor`, `trainer`, …
        index: Worker index; None for roles of one.
        file: Also append to this file.
    """
    logger = logging.getLogger(ROOT)
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    who = role if index is None else f"{role} {index}"
    formatter = logging.Formatter(f"%(asctime)s %(levelname).1s {who} | %(message)s", datefmt="%H:%M:%S")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(file))
    repeats = RepeatFilter()
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    for old in logger.filters[:]:
        logger.removeFilter(old)
    for handler in handlers[:1]:
        handler.addFilter(repeats)
    logger.setLevel(level)
    logger.propagate = False


class RepeatFilter(logging.Filter):
    """Lets the same warning (same place, same text before its values are filled in) through once per interval."""

    def __init__(self, interval_s: float = 10.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._now = now
        self._last_s: dict[tuple[str, int, str], float] = {}
        self._held: dict[tuple[str, int, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.lineno, str(record.msg))
        now_s = self._now()
        if now_s - self._last_s.get(key, float("-inf")) < self._interval_s:
            self._held[key] = self._held.get(key, 0) + 1
            return False
        self._last_s[key] = now_s
        held = self._held.pop(key, 0)
        if held:
            record.msg = f"{record.getMessage()} (and {held} more like it)"
            record.args = ()
        return True


def group_errors(errors: Mapping[int, BaseException | str], role: str) -> list[str]:
    """One line per distinct error of many workers, with the indices it came from."""
    indices: dict[str, list[int]] = {}
    for index, error in sorted(errors.items()):
        cause = getattr(error, "cause", None) or error
        text = error if isinstance(error, str) else f"{type(cause).__name__}: {cause}"
        indices.setdefault(str(text).strip().split("\n")[0], []).append(index)
    return [f"{role} {', '.join(map(str, who))}: {text}" for text, who in indices.items()]
