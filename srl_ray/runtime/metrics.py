"""Where a run's numbers go: metrics.jsonl, TensorBoard, one console line per interval, episodes.jsonl."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

_LOG = logging.getLogger(__name__)

Number = float | int
RETURN_PREFIX = "return/"
"""`return/<team>`: mean return of the episodes that ended in the interval; absent when none did."""

_CONSOLE = (
    ("rate/agent_steps_per_s", "{:,.0f} agent steps/s"),
    ("rate/rows_trained_per_s", "{:,.0f} rows trained/s"),
    ("rate/updates_per_s", "{:.3g} updates/s"),
    ("staleness/mean", "staleness {:.2f}"),
    ("buffer/fill", "buffer {:.0%}"),
)
_BURST = 100
_LITTLE_ROOM_BYTES = 2**30


class MetricsWriter:
    """One writer per run, at the driver; one thread calls it. Every write reaches the file before it returns.

    A record is one flat mapping per log interval. Names are `group/name`, units included; these are known to the
    console line: env_steps, the rates, staleness/mean, buffer/fill, return/<team>, restarts/<role>. Values that are
    None or not finite are left out: a number that does not exist yet is absent, not 0 and not NaN. A full
    disk costs a warning, not the run.

    Example:
        with MetricsWriter(run_dir, tensorboard=True, resumed_env_steps=12000) as metrics:
            metrics.write({"env_steps": 13000, "rate/agent_steps_per_s": 1810.0, "return/seekers": 3.5})
            metrics.write_episodes([{"length": 200, "returns": {"agent": 11.0}}], env_steps=13000)
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        tensorboard: bool = True,
        resumed_env_steps: int | None = None,
        console: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.time,
        episodes_per_s: float = 100.0,
        rotate_bytes: int = 50 * 2**20,
        keep_rotated: int = 3,
    ) -> None:
        """Open the files for appending.

        Args:
            directory: The run directory.
            tensorboard: Also write TensorBoard events (imports torch at the first record).
            resumed_env_steps: Records of later steps, written after that checkpoint by a run that was killed, are
                removed, so that steps increase strictly.
            console: Gets the line of every record; None prints nothing.
            episodes_per_s: Above this rate finished episodes are sampled.
            rotate_bytes: Size at which episodes.jsonl is renamed to episodes.1.jsonl and begun anew.
            keep_rotated: Renamed files to keep.
        """
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._console = console
        self._now = now
        self._episodes = _EpisodeFile(
            self._directory / "episodes.jsonl", now, episodes_per_s, rotate_bytes, keep_rotated
        )
        self._tensorboard: Any = None
        self._wants_tensorboard = tensorboard
        self._resumed_env_steps = resumed_env_steps
        self._last_step = -1
        self._is_disk_failing = False
        self._warned_of_little_room = False
        path = self._directory / "metrics.jsonl"
        if resumed_env_steps is not None:
            _drop_later(path, resumed_env_steps)
        self._file: TextIO = path.open("a")

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, record: Mapping[str, Number | str | None]) -> dict[str, Any]:
        """Write one interval everywhere; `env_steps` is required and is TensorBoard's step.

        Returns:
            What was written.
        """
        step = int(record["env_steps"] or 0)
        kept = {"time_unix_s": round(self._now(), 3), **{k: _number(v) for k, v in record.items()}}
        kept = {k: v for k, v in kept.items() if v is not None}
        try:
            self._file.write(json.dumps(kept) + "\n")
            self._file.flush()
            if self._wants_tensorboard and step > self._last_step:
                self._write_tensorboard(kept, step)
            self._is_disk_failing = False
        except OSError as error:
            if not self._is_disk_failing:
                _LOG.warning("metrics are not written: %s", error)
            self._is_disk_failing = True
        self._warn_of_little_room()
        self._last_step = max(self._last_step, step)
        if self._console is not None:
            self._console(format_line(kept))
        return kept

    def write_episodes(self, episodes: Sequence[Mapping[str, Any]], *, env_steps: int) -> None:
        """Append finished episodes; above the allowed rate an even sample, with its `rate` in every line."""
        try:
            self._episodes.write(episodes, env_steps)
        except OSError as error:
            if not self._is_disk_failing:
                _LOG.warning("episodes are not written: %s", error)
            self._is_disk_failing = True

    def close(self) -> None:
        """Close all files. Calling it twice is no error."""
        self._file.close()
        self._episodes.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None

    def _warn_of_little_room(self) -> None:
        if self._warned_of_little_room:
            return
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self._directory).free
            if free < _LITTLE_ROOM_BYTES:
                self._warned_of_little_room = True
                _LOG.warning("only %d MiB are free where %s is; checkpoints may fail", free >> 20, self._directory)

    def _write_tensorboard(self, record: Mapping[str, Any], step: int) -> None:
        if self._tensorboard is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                _LOG.warning("no TensorBoard events (%s); pip install tensorboard, or set run.tensorboard=false", error)
                self._wants_tensorboard = False
                return
            purge = None if self._resumed_env_steps is None else self._resumed_env_steps + 1
            self._tensorboard = SummaryWriter(str(self._directory), purge_step=purge)
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in ("env_steps", "time_unix_s"):
                self._tensorboard.add_scalar(name, value, step)
        self._tensorboard.flush()


class _EpisodeFile:
    """Finished episodes, at most `per_s` lines a second, in files of bounded size."""

    def __init__(self, path: Path, now: Callable[[], float], per_s: float, rotate_bytes: int, keep: int) -> None:
        self._path = path
        self._now = now
        self._per_s = per_s
        self._rotate_bytes = rotate_bytes
        self._keep = keep
        self._file: TextIO = path.open("a")
        self._tokens = float(_BURST)
        self._refilled_s = now()

    def write(self, episodes: Sequence[Mapping[str, Any]], env_steps: int) -> None:
        now_s = self._now()
        elapsed_s = max(0.0, now_s - self._refilled_s)
        self._tokens = min(max(_BURST, self._per_s * elapsed_s), self._tokens + self._per_s * elapsed_s)
        self._refilled_s = now_s
        if not episodes:
            return
        count = min(len(episodes), int(self._tokens))
        self._tokens -= count
        rate = count / len(episodes)
        for i in range(count):
            episode = episodes[i * len(episodes) // count]
            line = {"time_unix_s": round(now_s, 3), "env_steps": env_steps, "rate": round(rate, 6), **episode}
            self._file.write(json.dumps(line, default=_jsonable) + "\n")
        self._file.flush()
        if self._file.tell() > self._rotate_bytes:
            self._rotate()

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        for n in range(self._keep, 0, -1):
            source = self._path if n == 1 else self._numbered(n - 1)
            if source.exists():
                source.replace(self._numbered(n))
        self._file = self._path.open("a")

    def _numbered(self, n: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.{n}{self._path.suffix}")


def format_line(record: Mapping[str, Any]) -> str:
    """The console line of a record: what it has of the known numbers, returns per team, restarts if there were any."""
    parts = [f"{int(record['env_steps']):,} env steps"]
    parts += [text.format(record[name]) for name, text in _CONSOLE if name in record]
    returns = {k.removeprefix(RETURN_PREFIX): v for k, v in record.items() if k.startswith(RETURN_PREFIX)}
    if returns:
        parts.append("return " + " ".join(f"{team} {value:.4g}" for team, value in returns.items()))
    restarts = {k.removeprefix("restarts/"): v for k, v in record.items() if k.startswith("restarts/") and v}
    if restarts:
        parts.append("restarts " + " ".join(f"{role} {int(n)}" for role, n in restarts.items()))
    return " · ".join(parts)


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """All records of a metrics.jsonl (or the one in a run directory); a cut last line is left out."""
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def _drop_later(path: Path, env_steps: int) -> None:
    if not path.exists():
        return
    kept = [r for r in read_metrics(path) if r.get("env_steps", 0) <= env_steps]
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text("".join(json.dumps(r) + "\n" for r in kept))
    aside.replace(path)


def _number(value: Any) -> Any:
    """A plain JSON number or text; None for what is missing or not finite."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _jsonable(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
