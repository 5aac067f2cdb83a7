"""First signal: stop in order. Second: leave at once. Earlier handlers come back."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

import pytest

from srl_ray.runtime.logging import RepeatFilter, group_errors, setup_logging
from srl_ray.runtime.signals import stop_on_signals

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_asks_and_the_second_leaves(number: int, status: int):
    seen: list[int] = []
    left: list[int] = []
    before = signal.getsignal(number)
    with stop_on_signals(seen.append, leave_at_once=left.append) as stop:
        assert not stop.is_set
        assert stop.exit_status == 0
        os.kill(os.getpid(), number)
        assert stop.is_set
        assert (seen, left) == ([number], [])
        os.kill(os.getpid(), number)
        assert left == [status]
    assert stop.exit_status == status
    assert signal.getsignal(number) is before


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(RuntimeError), stop_on_signals():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_it_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    seen: list[bool] = []

    def body() -> None:
        with stop_on_signals() as stop:
            seen.append(stop.is_set or signal.getsignal(signal.SIGINT) is not before)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [False]


# -- logging -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def restored_logger():
    logger = logging.getLogger("srl_ray")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before


def test_lines_name_role_and_index(tmp_path: Path, restored_logger: logging.Logger):
    setup_logging("actor", 3, file=tmp_path / "logs" / "actor_3.log")
    setup_logging("actor", 3, file=tmp_path / "logs" / "actor_3.log")
    logging.getLogger("srl_ray.actors.worker").info("ready")
    assert (tmp_path / "logs" / "actor_3.log").read_text().strip().endswith("I actor 3 | ready")
    assert len(restored_logger.handlers) == 2


def test_repeated_warnings_are_counted_not_printed():
    now = [0.0]
    repeats = RepeatFilter(interval_s=10.0, now=lambda: now[0])

    def passes(value: int, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("srl_ray", level, "f.py", 1, "late chunk %d", (value,), None)
        return record.getMessage() if repeats.filter(record) else None

    assert passes(1) == "late chunk 1"
    assert passes(2) is None
    assert passes(3) is None
    now[0] = 11.0
    assert passes(4) == "late chunk 4 (and 2 more like it)"
    assert passes(5, logging.INFO) == "late chunk 5"


def test_the_same_error_of_many_workers_is_one_line():
    errors: dict[int, BaseException | str] = {0: KeyError("a"), 2: KeyError("a"), 5: RuntimeError("b\nmore")}
    assert group_errors(errors, "actor") == ["actor 0, 2: KeyError: 'a'", "actor 5: RuntimeError: b"]
