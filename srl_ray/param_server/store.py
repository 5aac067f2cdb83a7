"""The parameter store: which versions of which policies exist, in what order, under which tags. No Ray, no disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Stamp = tuple[int, int]
"""(epoch, version). The epoch counts generations of the trainer group: it rises when trainers restart from a
checkpoint, so that version 40 of epoch 1 is newer than version 57 of epoch 0, which nobody will continue."""

NOTHING: Stamp = (-1, -1)
"""Older than every published version."""


@dataclass
class RunningMean:
    """Mean of `count` numbers, updated without keeping them."""

    mean: float = 0.0
    count: int = 0

    def add(self, mean: float, count: int = 1) -> None:
        """Merge in `count` numbers whose mean is `mean`."""
        if count < 1:
            raise ValueError(f"count must be >= 1, got {count}")
        self.count += count
        self.mean += (mean - self.mean) * count / self.count


@dataclass(eq=False)
class Entry:
    """One published version.

    Attributes:
        weights: Whatever the caller stores (an object ref in the service); None once released to disk.
        tags: Names that point here.
        metadata: Free facts given at publication, JSON-able.
        means: Running means reported later, for example the returns seen with this version.
    """

    policy: str
    epoch: int
    version: int
    weights: Any
    tags: set[str] = field(default_factory=set)
    metadata: dict[str, Any] = field(default_factory=dict)
    means: dict[str, RunningMean] = field(default_factory=dict)
    published_unix_s: float = 0.0

    @property
    def stamp(self) -> Stamp:
        return self.epoch, self.version


@dataclass(frozen=True)
class PublishOutcome:
    """What became of a publication.

    Attributes:
        entry: The stored entry, or the newest one when this publication was refused.
        accepted: False: it is older than what is already there (a late message of a trainer that was replaced).
        dropped: Entries that left the store because of it.
    """

    entry: Entry
    accepted: bool
    dropped: tuple[Entry, ...] = ()


class ParameterStore:
    """Versions of policies, newest first by (epoch, version). Not thread-safe: one loop or thread owns it.

    Lifecycle:   published --(K newer ones)--> collected, unless tagged
    Tag:         points to one version; moving it releases the version it pointed to

    A publication of a newer epoch takes the lineage up at its version: untagged entries of older epochs with a number
    at or beyond it belong to an abandoned future and are dropped. Tagged ones stay, reachable by their tag.

    Example:
        store = ParameterStore(keep=3)
        store.publish("main", epoch=0, version=7, weights=flat, tags=("best",))
        store.latest("main").version                      # 7
        store.get("main", tag="best").weights
        store.update_metadata("main", {"return": 21.5}, version=7, count=10)
    """

    def __init__(self, *, keep: int = 3, now: Callable[[], float] = time.time) -> None:
        """Args:
        keep: Newest versions per policy that survive untagged, >= 1.
        now: Clock for `published_unix_s`.
        """
        if keep < 1:
            raise ValueError(f"keep must be >= 1, got {keep}")
        self._keep = keep
        self._now = now
        self._entries: dict[str, dict[Stamp, Entry]] = {}
        self._counts = {"published": 0, "refused": 0, "collected": 0}

    def publish(
        self,
        policy: str,
        *,
        epoch: int,
        version: int,
        weights: Any,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> PublishOutcome:
        """Store a version. Publishing the newest stamp again replaces its weights (a resend is harmless).

        Raises:
            ValueError: negative epoch or version.
        """
        if epoch < 0 or version < 0:
            raise ValueError(f"epoch and version must be >= 0, got {epoch} and {version}")
        entries = self._entries.setdefault(policy, {})
        newest = self.latest(policy)
        if newest is not None and (epoch, version) < newest.stamp:
            self._counts["refused"] += 1
            return PublishOutcome(newest, accepted=False)
        entry = entries.get((epoch, version))
        if entry is None:
            entry = Entry(policy, epoch, version, weights, published_unix_s=self._now())
            entries[entry.stamp] = entry
        entry.weights = weights
        entry.metadata.update(metadata or {})
        for tag in tags:
            self._point(policy, tag, entry)
        abandoned = [e for e in entries.values() if e.epoch < epoch and e.version >= version and not e.tags]
        for e in abandoned:
            del entries[e.stamp]
        self._counts["published"] += 1
        return PublishOutcome(entry, accepted=True, dropped=(*abandoned, *self.collect(policy)))

    def latest(self, policy: str) -> Entry | None:
        """The newest version, or None when nothing was published."""
        entries = self._entries.get(policy)
        return entries[max(entries)] if entries else None

    def newer(self, policy: str, than: Stamp) -> Entry | None:
        """The newest version if it is newer than `than`, else None."""
        entry = self.latest(policy)
        return entry if entry is not None and entry.stamp > tuple(than) else None

    def get(self, policy: str, *, version: int | None = None, tag: str | None = None) -> Entry:
        """The entry of a version (of the newest epoch that has it) or of a tag; the newest when neither is given.

        Raises:
            LookupError: no such policy, version or tag; the message lists what there is.
        """
        entries = self._entries.get(policy)
        if not entries:
            known = ", ".join(sorted(p for p, e in self._entries.items() if e)) or "none"
            raise LookupError(f"no version of policy {policy!r} was published (policies with versions: {known})")
        if tag is not None:
            for entry in entries.values():
                if tag in entry.tags and version in (None, entry.version):
                    return entry
            tags = sorted(t for e in entries.values() for t in e.tags)
            raise LookupError(f"policy {policy!r} has no version tagged {tag!r} (tags: {', '.join(tags) or 'none'})")
        if version is None:
            return entries[max(entries)]
        stamps = [stamp for stamp in entries if stamp[1] == version]
        if not stamps:
            kept = ", ".join(str(v) for v in sorted({v for _, v in entries}))
            raise LookupError(f"version {version} of policy {policy!r} is not kept any more (kept: {kept})")
        return entries[max(stamps)]

    def tag(self, policy: str, tag: str, *, version: int | None = None) -> tuple[Entry, tuple[Entry, ...]]:
        """Point `tag` at a version (the newest by default).

        Returns:
            The tagged entry, and entries collected because the tag left them.

        Raises:
            LookupError: no such version.
        """
        entry = self.get(policy, version=version)
        self._point(policy, tag, entry)
        return entry, self.collect(policy)

    def untag(self, policy: str, tag: str) -> tuple[Entry, ...]:
        """Remove a tag; returns the entries collected because of it. An unknown tag is no error."""
        for entry in self._entries.get(policy, {}).values():
            entry.tags.discard(tag)
        return self.collect(policy)

    def update_metadata(
        self, policy: str, values: Mapping[str, float], *, version: int, epoch: int | None = None, count: int = 1
    ) -> bool:
        """Merge numbers, each the mean of `count` observations, into a version's running means.

        Returns:
            False when the version is not kept any more: late reports are normal and lost.
        """
        entries = self._entries.get(policy, {})
        stamps = [s for s in entries if s[1] == version and epoch in (None, s[0])]
        if not stamps:
            return False
        means = entries[max(stamps)].means
        for key, value in values.items():
            means.setdefault(key, RunningMean()).add(float(value), count)
        return True

    def collect(self, policy: str) -> tuple[Entry, ...]:
        """Remove untagged versions beyond the newest `keep`; returns them."""
        entries = self._entries.get(policy, {})
        old = sorted(entries, reverse=True)[self._keep :]
        removed = tuple(entries.pop(stamp) for stamp in old if not entries[stamp].tags)
        self._counts["collected"] += len(removed)
        return removed

    def beyond_newest(self, policy: str) -> list[Entry]:
        """Tagged entries that only their tag keeps; their weights may be released to disk."""
        entries = self._entries.get(policy, {})
        return [entries[stamp] for stamp in sorted(entries, reverse=True)[self._keep :]]

    def entries(self, policy: str) -> list[Entry]:
        """All entries of a policy, newest first."""
        entries = self._entries.get(policy, {})
        return [entries[stamp] for stamp in sorted(entries, reverse=True)]

    def policies(self) -> list[str]:
        return sorted(p for p, entries in self._entries.items() if entries)

    def restore(self, entry: Entry) -> None:
        """Put an entry back as read from disk, without the rules of `publish`."""
        self._entries.setdefault(entry.policy, {})[entry.stamp] = entry

    def forget(self, entry: Entry) -> None:
        """Remove an entry whose weights are lost."""
        self._entries.get(entry.policy, {}).pop(entry.stamp, None)

    def counts(self) -> dict[str, int]:
        """Publications accepted and refused, versions collected, since the store was made."""
        return dict(self._counts)

    def _point(self, policy: str, tag: str, entry: Entry) -> None:
        for other in self._entries[policy].values():
            other.tags.discard(tag)
        entry.tags.add(tag)
