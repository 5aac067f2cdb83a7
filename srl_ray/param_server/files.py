"""Versions on disk: <directory>/<policy>/v<version>_e<epoch>.safetensors and an index.json beside them. No Ray."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from srl_ray.param_server.store import NOTHING, Entry, RunningMean, Stamp
from srl_ray.param_server.weights import DamagedFile, FlatWeights, load_safetensors, save_safetensors

_LOG = logging.getLogger(__name__)
HISTORY_EPOCH = NOTHING[0] - 1
"""Newest epoch of versions that an earlier run left behind."""

_FORMAT = 1
_FILE_NAME = re.compile(r"v(?P<version>\d+)_e(?P<epoch>-?\d+)\.safetensors")


@dataclass
class IndexRecord:
    """What the index says about one version. Only `files.py` and the service see it."""

    epoch: int
    version: int
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    means: dict[str, tuple[float, int]] = field(default_factory=dict)
    published_unix_s: float = 0.0

    @classmethod
    def of(cls, entry: Entry) -> IndexRecord:
        return cls(
            entry.epoch,
            entry.version,
            sorted(entry.tags),
            dict(entry.metadata),
            {k: (m.mean, m.count) for k, m in entry.means.items()},
            entry.published_unix_s,
        )

    def to_entry(self, policy: str) -> Entry:
        means = {k: RunningMean(m, n) for k, (m, n) in self.means.items()}
        return Entry(
            policy, self.epoch, self.version, None, set(self.tags), self.metadata, means, self.published_unix_s
        )


class ParameterFiles:
    """Reads and writes one directory of versions. Called from one thread at a time; every method blocks on the disk.

    The index says which run wrote it. When another run (one that resumed this directory) reads it, the versions are
    history: tagged ones stay, with epochs below every epoch of the new run; untagged ones go, because the new run
    publishes its own from the checkpoint on.

    Files are written aside and renamed, the index last, so that a kill at any moment leaves a readable directory.

    Example:
        files = ParameterFiles(run_dir / "parameters")
        files.write_weights("main", (0, 12), flat)
        files.write_index("main", [IndexRecord.of(entry)])     # and removes files that no record names
        for entry in ParameterFiles(run_dir / "parameters").read_all(): ...
    """

    def __init__(self, directory: Path | str, run_id: str = "") -> None:
        self.directory = Path(directory)
        self._run_id = run_id

    def path(self, policy: str, stamp: Stamp) -> Path:
        return self._folder(policy) / f"v{stamp[1]:012d}_e{stamp[0]}.safetensors"

    def exists(self, policy: str, stamp: Stamp) -> bool:
        return self.path(policy, stamp).exists()

    def write_weights(self, policy: str, stamp: Stamp, flat: FlatWeights) -> None:
        """Raises OSError when the disk does not take it."""
        self._folder(policy).mkdir(parents=True, exist_ok=True)
        facts = {"policy": policy, "epoch": str(stamp[0]), "version": str(stamp[1])}
        save_safetensors(self.path(policy, stamp), flat, facts)

    def read_weights(self, policy: str, stamp: Stamp) -> FlatWeights:
        """Raises DamagedFile or FileNotFoundError."""
        return load_safetensors(self.path(policy, stamp))[0]

    def write_index(self, policy: str, records: list[IndexRecord]) -> None:
        """Replace the index, then remove the files of versions that are not in it. Raises OSError."""
        folder = self._folder(policy)
        folder.mkdir(parents=True, exist_ok=True)
        index = {"format": _FORMAT, "policy": policy, "run_id": self._run_id, "versions": [vars(r) for r in records]}
        aside = folder / f".index.{os.getpid()}.tmp"
        aside.write_text(json.dumps(index, indent=1, default=str))
        aside.replace(folder / "index.json")
        named = {self.path(policy, (r.epoch, r.version)).name for r in records}
        for path in [*folder.glob("v*.safetensors"), *folder.glob(".v*.tmp")]:
            if path.name not in named:
                path.unlink(missing_ok=True)

    def read_all(self) -> list[Entry]:
        """Every version whose file is sound; damaged or missing ones are skipped with a warning.

        The entries carry no weights; `read_weights` loads them.
        """
        entries: list[Entry] = []
        for folder in sorted(self.directory.glob("*/")) if self.directory.is_dir() else []:
            policy = unquote(folder.name)
            run_id, records = self._read_index(folder)
            records = [r for r in records if self._is_sound(policy, r)]
            if run_id != self._run_id:
                records = self._turn_to_history(policy, records)
            entries += [r.to_entry(policy) for r in records]
        return entries

    def _is_sound(self, policy: str, record: IndexRecord) -> bool:
        try:
            load_safetensors(self.path(policy, (record.epoch, record.version)))
        except (DamagedFile, OSError) as error:
            _LOG.warning("skipping version %d of policy %s: %s", record.version, policy, error)
            return False
        return True

    def _turn_to_history(self, policy: str, records: list[IndexRecord]) -> list[IndexRecord]:
        """Keep what is tagged, under epochs older than `store.NOTHING`, so that only its tag reaches it."""
        epochs = [r.epoch for r in records]
        shift = 0
        if epochs and max(epochs) > HISTORY_EPOCH:
            # Below every epoch in use too, so that no file is overwritten before the index stops naming it.
            shift = max(max(epochs) - HISTORY_EPOCH, max(epochs) - min(epochs) + 1)
        history = [replace(r, epoch=r.epoch - shift) for r in records if r.tags]
        for record in history if shift else []:
            old = self.path(policy, (record.epoch + shift, record.version))
            shutil.copyfile(old, self.path(policy, (record.epoch, record.version)))
        self.write_index(policy, history)
        return history

    def _folder(self, policy: str) -> Path:
        return self.directory / quote(policy, safe=" ")

    def _read_index(self, folder: Path) -> tuple[str, list[IndexRecord]]:
        path = folder / "index.json"
        try:
            index = json.loads(path.read_text())
            if index["format"] != _FORMAT:
                _LOG.warning("skipping %s: format %s, this version reads %d", path, index["format"], _FORMAT)
                return self._run_id, []
            return str(index.get("run_id", "")), [IndexRecord(**record) for record in index["versions"]]
        except FileNotFoundError:
            return self._run_id, []
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("%s is damaged (%r); taking the versions from the file names", path, error)
        return self._run_id, [
            IndexRecord(int(match["epoch"]), int(match["version"]))
            for match in map(_FILE_NAME.fullmatch, sorted(p.name for p in folder.iterdir()))
            if match
        ]
