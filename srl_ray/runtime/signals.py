"""Ctrl-C and SIGTERM: the first asks the run to stop in order, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """What came in. Plain attributes, because a signal handler must not take locks."""

    def __init__(self) -> None:
        self.received: int | None = None

    @property
    def is_set(self) -> bool:
        return self.received is not None

    @property
    def name(self) -> str:
        """`SIGINT`, `SIGTERM` or nothing."""
        return signal.Signals(self.received).name if self.received is not None else ""

    @property
    def exit_status(self) -> int:
        """130 after SIGINT, 143 after SIGTERM, else 0."""
        return 0 if self.received is None else 128 + self.received


@contextlib.contextmanager
def stop_on_signals(
    callback: Callable[[int], None] | None = None, *, leave_at_once: Callable[[int], Any] = os._exit
) -> Iterator[StopSignal]:
    """Catch SIGINT and SIGTERM for the length of the block, then put the earlier handlers back.

    Enter it after `ray.init`, which installs a SIGTERM handler of its own. Outside the main thread (a notebook's
    helper thread, a server) it does nothing and the signal stays unset.

    Args:
        callback: Called by the handler with the first signal's number; brief, and takes no locks.
        leave_at_once: Called with 130 or 143 on the second signal.

    Example:
        with connect(config.cluster) as cluster, stop_on_signals() as stop:
            while not stop.is_set and not done():
                supervise_once(timeout_s=0.5)
        return stop.exit_status
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.received is not None:
            leave_at_once(128 + number)
            return
        stop.received = number
        if callback is not None:
            callback(number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
