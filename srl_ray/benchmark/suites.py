"""What each suite runs, as named variants of a task; a variant is a list of overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

THROUGHPUT: Mapping[str, tuple[str, ...]] = {"srl_ray": ()}

REMOTE = ("layout=remote",)

ABLATION: Mapping[str, tuple[str, ...]] = {
    "as it is (inline inference, one block)": (),
    "synchronous (staleness 0)": ("trainers.max_staleness=0",),
    "staleness 4": ("trainers.max_staleness=4",),
    "next batch assembled while one trains": ("trainers.prefetch=true",),
    "whole frame stacks": ("env.frame_stack=none",),
    "single environments in place of blocks": ("env.envs_per_block=1", "actors.ring_size=16"),
    "remote inference, ring of 1": (*REMOTE, "actors.ring_size=1"),
    "remote inference, ring of 2": (*REMOTE, "actors.ring_size=2"),
    "remote inference, ring of 4": (*REMOTE, "actors.ring_size=4"),
    "remote inference, ring of 4, a batch per request": (
        *REMOTE,
        "actors.ring_size=4",
        "policy_workers.max_batch_rows=1",
    ),
    "remote inference, ring of 2, Ray calls": (*REMOTE, "actors.ring_size=2", "policy_workers.transport=ray"),
}
"""One change at a time. Rings share the task's environments: the block shrinks as the ring grows."""


def variant_overrides(overrides: Sequence[str], variant: Sequence[str]) -> list[str]:
    """A task's overrides with those of a variant; blocks shrink as rings grow, the environments stay as many."""
    ring = next((int(item.partition("=")[2]) for item in variant if item.startswith("actors.ring_size=")), 1)
    changed = []
    for override in overrides:
        key, _, value = override.partition("=")
        changed.append(f"{key}={max(1, int(value) // ring)}" if key == "env.envs_per_block" else override)
    return [*changed, *variant]
