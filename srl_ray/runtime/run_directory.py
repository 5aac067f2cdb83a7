"""The run directory: where a run writes, what it resumes from, what it keeps."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from srl_ray.core.errors import CheckpointError, ConfigError
from srl_ray.runtime.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, load_newest, save_checkpoint
from srl_ray.runtime.config import RunConfig

_LOG = logging.getLogger(__name__)
_RUNS = Path("runs")


@dataclass(frozen=True)
class RunDirectory:
    """One run's folder.

    Example:
        directory, checkpoint = open_run_directory(config.run, experiment="cartpole")
        directory.write_config(config)
        directory.save_checkpoint(content, env_steps=12000, keep=config.run.keep_checkpoints)
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def parameters(self) -> Path:
        return self.path / "parameters"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes.jsonl"

    def checkpoint_path(self, env_steps: int) -> Path:
        """Folder of the checkpoint at a number of environment steps."""
        return self.checkpoints / f"step_{env_steps:012d}"

    def write_config(self, config: Any) -> None:
        """Write the resolved configuration (a dataclass, a mapping or YAML text) to config.yaml."""
        if isinstance(config, str):
            text = config
        else:
            import yaml

            tree = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
            text = yaml.safe_dump(_plain(tree), sort_keys=False, allow_unicode=True)
        aside = self.path / ".config.yaml.tmp"
        aside.write_text(text)
        aside.replace(self.path / "config.yaml")

    def save_checkpoint(
        self,
        content: Checkpoint | Mapping[str, Any],
        *,
        env_steps: int,
        facts: Mapping[str, Any] | None = None,
        keep: int = 3,
    ) -> Path:
        """Write the checkpoint of this step, then remove the oldest beyond `keep`. Blocks on the disk.

        Raises:
            CheckpointError: it could not be written; the older ones are untouched.
        """
        path = save_checkpoint(self.checkpoint_path(env_steps), content, facts)
        self.prune_checkpoints(keep)
        return path

    def prune_checkpoints(self, keep: int) -> None:
        """Remove checkpoints beyond the newest `keep`, and what a killed writer left behind."""
        for path in list_checkpoints(self.checkpoints)[max(1, keep) :]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self.checkpoints.glob(".step_*"):
            if _writer_is_gone(path):
                shutil.rmtree(path, ignore_errors=True)

    def newest_checkpoint(self) -> Checkpoint | None:
        """The newest sound checkpoint; see `load_newest`."""
        return load_newest(self.checkpoints)


def open_run_directory(
    config: RunConfig, *, experiment: str, base: Path | None = None, now_s: float | None = None
) -> tuple[RunDirectory, Checkpoint | None]:
    """Create the run's folder, or take up the one to resume, and point `latest` at it.

    `run.resume` decides: null starts afresh and refuses a folder that already holds a run; auto takes run.dir, else
    runs/<experiment>/latest, and starts afresh when there is none; a path names a run directory or one checkpoint. A
    run resumed from its own directory goes on in it; with an explicit run.dir it goes on there.

    Args:
        base: Folder of runs, `runs` by default.

    Raises:
        ConfigError: run.dir holds a run and resume is null.
        CheckpointError: the path to resume from does not exist or nothing in it can be read.
    """
    base = base or _RUNS
    resume = None if config.resume in (None, "", "null", "none") else config.resume
    own = Path(config.dir) if config.dir else None
    checkpoint: Checkpoint | None = None
    if resume is None:
        if own is not None and _holds_a_run(own):
            raise ConfigError(
                f"run.dir={config.dir} already holds a run. Add run.resume=auto to continue it, or choose another "
                "run.dir."
            )
        path = own or _new_path(base / experiment, now_s)
    elif resume == "auto":
        path, checkpoint = _resume_auto(own, base / experiment, now_s)
    else:
        source, checkpoint = _resume_path(Path(resume))
        path = own or source
        if _holds_a_run(path) and path.resolve() != source.resolve():
            raise ConfigError(
                f"run.dir={config.dir} already holds another run than run.resume={resume}. Choose an empty run.dir, or "
                "leave it out to continue in the resumed run's own."
            )
    path.mkdir(parents=True, exist_ok=True)
    for name in ("checkpoints", "logs"):
        (path / name).mkdir(exist_ok=True)
    _point_latest(base / experiment / "latest", path)
    return RunDirectory(path), checkpoint


def find_checkpoint(path: Path | str) -> Path:
    """The checkpoint folder meant by a path: itself, or the newest of a run directory or a checkpoints folder.

    Raises:
        CheckpointError: nothing there.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(str(path), "does not exist")
    if (path / "state.json").exists():
        return path
    for folder in (path / "checkpoints", path):
        found = list_checkpoints(folder)
        if found:
            return found[0]
    raise CheckpointError(str(path), "holds no checkpoint (expected a run directory or a folder step_<number>)")


def _resume_auto(own: Path | None, experiment_dir: Path, now_s: float | None) -> tuple[Path, Checkpoint | None]:
    latest = experiment_dir / "latest"
    path = own if own is not None else latest.resolve() if latest.exists() else None
    if path is None or not path.exists():
        _LOG.info("run.resume=auto: nothing to resume, starting afresh")
        return own or _new_path(experiment_dir, now_s), None
    checkpoint = load_newest(path / "checkpoints")
    if checkpoint is None:
        _LOG.info("run.resume=auto: %s has no checkpoint yet, starting afresh in it", path)
    return path, checkpoint


def _resume_path(source: Path) -> tuple[Path, Checkpoint]:
    """The run directory and the checkpoint that an explicit path means."""
    found = find_checkpoint(source)
    if found == source:
        checkpoint = load_checkpoint(found)
    else:
        newest = load_newest(found.parent)
        assert newest is not None, "find_checkpoint saw one"
        checkpoint = newest
    folder = found.parent
    return (folder.parent if folder.name == "checkpoints" else folder), checkpoint


def _holds_a_run(path: Path) -> bool:
    return path.is_dir() and any(not p.name.startswith(".") and p.name != "logs" for p in path.iterdir())


def _new_path(experiment_dir: Path, now_s: float | None) -> Path:
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now_s))
    path, n = experiment_dir / stamp, 1
    while path.exists():
        n += 1
        path = experiment_dir / f"{stamp}_{n}"
    return path


def _point_latest(link: Path, target: Path) -> None:
    """A symbolic link, replaced in one step; where links are impossible the run goes on without."""
    with contextlib.suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        aside = link.with_name(f".latest.{os.getpid()}")
        aside.unlink(missing_ok=True)
        aside.symlink_to(os.path.relpath(target.absolute(), link.parent.absolute()))
        aside.replace(link)


def _writer_is_gone(path: Path) -> bool:
    """Whether a temporary folder `.step_<n>.<pid>.tmp` was left by a process that ended."""
    parts = path.name.split(".")
    pid = parts[-2] if len(parts) > 2 else ""
    return not pid.isdigit() or (int(pid) != os.getpid() and not Path(f"/proc/{pid}").exists())


def _plain(value: Any) -> Any:
    """What YAML can hold: paths and callables become text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"{value.__module__}:{value.__qualname__}" if callable(value) else str(value)
