"""The trainer worker: sample buffer in front, algorithm in the middle, parameter service behind."""

from __future__ import annotations

import importlib
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from srl_ray.algorithms.algorithm import Algorithm
from srl_ray.algorithms.config import AlgorithmConfig
from srl_ray.algorithms.factory import make_algorithm
from srl_ray.algorithms.frame_stacks import with_stacks
from srl_ray.core.types import BlockSpec, ChunkLayout
from srl_ray.models.compilation import compile_training
from srl_ray.models.config import PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.weights import snapshot
from srl_ray.streams.inference import PolicySignature
from srl_ray.streams.sample_buffer import Chunk, ChunkMessage, Grant, Producer, SampleBuffer
from srl_ray.trainer import process_group
from srl_ray.trainer.batches import Prefetcher, assemble, trained_rows
from srl_ray.trainer.config import TrainersConfig
from srl_ray.trainer.warm_up import warm_up

_UPDATES_KEPT = 10_000


@dataclass(frozen=True)
class TrainerSettings:
    """What a trainer worker is told before it starts.

    Attributes:
        rank: Index among trainer workers.
        epoch: Generation of the trainer group; a re-formed group has a higher one.
        seed: The run's base seed.
        namespace: Of the parameter service.
        policy_name: Lineage that is trained.
        total_env_steps: Where schedules end; None: they stay at their beginning.
        checkpoint: Checkpoint folder to start from; empty: the weights of policy.start_from, or fresh ones.
        buffer_bytes: Capacity of the sample buffer.
        deterministic: See `run.deterministic`.
        num_blocks: Blocks of environments that feed the trainer workers.
        num_threads: Math threads.
        use_gpu: Train on the GPU that Ray assigned.
    """

    rank: int
    epoch: int
    seed: int
    trainers: TrainersConfig
    algorithm: AlgorithmConfig
    policy: PolicyConfig
    layout: ChunkLayout
    namespace: str
    policy_name: str
    total_env_steps: int | None = None
    checkpoint: str = ""
    buffer_bytes: int | None = None
    deterministic: bool = False
    num_blocks: int = 1
    num_threads: int = 1
    use_gpu: bool = False


@dataclass
class UpdateRecord:
    """Metrics of the update that made `version`."""

    version: int
    metrics: dict[str, float]


@dataclass
class TrainerReport:
    """Counters since this worker began, and the updates that were not acknowledged yet.

    Attributes:
        seconds: Stage → seconds of the training thread: wait, assemble, update, publish; and processor: of all threads
            of the process.
        buffer: Counts of the sample buffer, see SampleBufferMetrics.
    """

    rank: int
    epoch: int
    version: int
    rows_trained_fresh: int
    rows_trained_total: int
    seconds: dict[str, float] = field(default_factory=dict)
    buffer: dict[str, Any] = field(default_factory=dict)
    updates: list[UpdateRecord] = field(default_factory=list)


class TrainerWorker:
    """One rank of the trainer group. A plain class; Ray is put on elsewhere.

    Lifecycle:   setup() → [join_group()] → begin() → run() … stop() → run returns
    Threads:     setup, join_group, begin and run in one; everything else in any other.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings
        self.version = 0
        self.rows_trained_fresh = 0
        self.rows_trained_total = 0
        self._rows_before = 0
        self._progress = 0.0
        self._stop = threading.Event()
        self._idle = threading.Lock()  # held during an update: a checkpoint is taken between updates
        self._updates: deque[UpdateRecord] = deque(maxlen=_UPDATES_KEPT)
        self._seconds = {"wait": 0.0, "assemble": 0.0, "update": 0.0, "publish": 0.0}
        config, world = settings.trainers, settings.trainers.count
        self._buffer = SampleBuffer(
            batch_chunks=config.batch_chunks // world,
            max_staleness=config.max_staleness,
            reuse=config.reuse,
            capacity_chunks=None if config.buffer_chunks is None else max(1, config.buffer_chunks // world),
            capacity_bytes=settings.buffer_bytes,
            sort=settings.deterministic,
            producers=settings.num_blocks if settings.deterministic else None,
        )
        importlib.import_module("torch._dynamo")  # optimisers need it: a second in which others build environments

        self._device = torch.device("cpu")
        self._algorithm: Algorithm | None = None
        self._prefetcher: Prefetcher | None = None
        self._parameters = ParameterClient(settings.namespace, settings.policy_name)

    # ------------------------------------------------------------------------------------------------------- control

    def setup(self, spec: BlockSpec) -> PolicySignature:
        """Build policy and algorithm, load the checkpoint if one was named.

        Raises:
            CheckpointError: it is damaged or does not fit.
        """
        settings = self.settings
        torch.set_num_threads(settings.num_threads)
        if settings.use_gpu:
            self._device = torch.device("cuda")
        policy = make_policy(settings.policy, spec.group.obs, spec.group.action, settings.seed)
        if settings.policy.start_from and not settings.checkpoint:
            from srl_ray.runtime.warm_start import start_policy_from

            start_policy_from(settings.policy.start_from, policy, reset_outputs=settings.policy.reset_outputs)
        policy.to(self._device)  # type: ignore[attr-defined]
        if settings.policy.is_training_compiled:
            compile_training(policy)
        self._spec = spec
        self._algorithm = make_algorithm(
            settings.algorithm,
            policy,
            settings.layout,
            process_group.make_collective(settings.trainers.count, bucket_bytes=settings.trainers.bucket_bytes),
            settings.seed + settings.rank,
        )
        if settings.checkpoint:
            self._load(Path(settings.checkpoint))
        return PolicySignature(policy.action_spec.field, policy.state_size)

    def free_address(self) -> str:
        """Where rank 0 will listen for the other ranks."""
        return process_group.free_address()

    def join_group(self, address: str) -> None:
        """Join the other ranks (blocks until all are there) and take rank 0's weights."""
        config = self.settings.trainers
        process_group.join(
            address,
            self.settings.rank,
            config.count,
            backend="nccl" if self._device.type == "cuda" else "gloo",
            timeout_s=config.collective_timeout_s,
        )
        process_group.broadcast_module(self._policy)

    def begin(self) -> int:
        """Compile if asked to, publish the first version and open the gate; returns the version."""
        if self.settings.policy.is_training_compiled:
            assert self._algorithm is not None
            chunks = self.settings.trainers.batch_chunks // self.settings.trainers.count
            warm_up(self._algorithm, self._spec, self.settings.layout, chunks)
        self._publish()
        self._buffer.set_version(self.version, self.settings.epoch)
        return self.version

    def push(self, producer: Producer, message: ChunkMessage, want: int, deadline_s: float) -> Grant:
        """The sample stream's entrance; see SampleBuffer.push."""
        return self._buffer.push(producer, message, want, deadline_s)

    def ask(self, producer: Producer, want: int, deadline_s: float) -> Grant:
        """A block asks for grants; see SampleBuffer.ask."""
        return self._buffer.ask(producer, want, deadline_s)

    def forget_actor(self, worker: int, epoch: int) -> None:
        """Actor worker `worker` was replaced by its generation `epoch`."""
        self._buffer.forget(worker, epoch)

    def republish(self) -> None:
        """Give a parameter service that came back the newest version again; does nothing on other ranks than 0."""
        self._parameters.publish_again()

    def set_progress(self, progress: float) -> None:
        """Fraction of stop.env_steps done; schedules read it."""
        self._progress = progress

    def stop(self) -> None:
        """Have `run` return after the update under way; every rank stops after the same update."""
        self._stop.set()

    def report(self, acknowledged: int) -> TrainerReport:
        """Counters and the updates after version `acknowledged`."""
        while self._updates and self._updates[0].version <= acknowledged:
            self._updates.popleft()
        return TrainerReport(
            self.settings.rank,
            self.settings.epoch,
            self.version,
            self.rows_trained_fresh,
            self.rows_trained_total,
            {**self._seconds, "processor": process_time()},
            self._buffer.snapshot(),
            list(self._updates),
        )

    def save(self, folder: str, facts: dict[str, Any]) -> str:
        """Write a checkpoint between two updates; returns its path. `facts` are the driver's own (JSON)."""
        from srl_ray.runtime.checkpoint import Checkpoint, save_checkpoint

        assert self._algorithm is not None
        with self._idle:
            checkpoint = Checkpoint(
                tensors={"policy": dict(self._policy.state_dict())},
                state={"algorithm": self._algorithm.state_dict()},
                facts={
                    **facts,
                    "policy_version": self.version,
                },
            )
            return str(save_checkpoint(Path(folder), checkpoint))

    def _load(self, path: Path) -> None:
        from srl_ray.runtime.checkpoint import load_checkpoint

        assert self._algorithm is not None
        checkpoint = load_checkpoint(path)
        checkpoint.install_policy(self._policy)
        self._algorithm.load_state_dict(checkpoint.state["algorithm"])
        facts = checkpoint.facts
        self.version = int(facts["policy_version"])
        self._rows_before = int(facts.get("rows_trained_fresh", 0))

    @property
    def _policy(self) -> torch.nn.Module:
        assert self._algorithm is not None
        return self._algorithm.policy  # type: ignore[return-value]

    # ----------------------------------------------------------------------------------------------------------- run

    def run(self) -> TrainerReport:
        """Train until `stop`; returns the final report.

        consumes:      batches of the sample buffer
        produces:      versions at the parameter service
        waits for:     B chunks on every rank
        unblocked by:  push(), stop()
        """
        try:
            while True:
                begin = perf_counter()
                chunks = self._next_chunks()
                self._seconds["wait"] += perf_counter() - begin
                if chunks is None:
                    break
                if chunks:
                    self._train(chunks)
            return self.report(-1)
        finally:
            self._buffer.close()
            if self._prefetcher is not None:
                self._prefetcher.close()
            process_group.leave()

    def _next_chunks(self) -> list[Chunk] | None:
        """A batch; empty: none yet; None: stop. All ranks get a batch, or none does."""
        if self.settings.trainers.count == 1:
            return None if self._stop.is_set() else self._buffer.take(0.5) or []
        is_ready = self._buffer.wait_ready(0.2)
        is_stopped, is_everyone_ready = process_group.any_and_all(
            anyone=self._stop.is_set(), everyone=is_ready, device=self._device
        )
        if is_stopped:
            return None
        return (self._buffer.take(0.0) or []) if is_everyone_ready else []

    def _train(self, chunks: list[Chunk]) -> None:
        assert self._algorithm is not None
        begin = perf_counter()
        versions = np.array([chunk.oldest_version for chunk in chunks])
        rows = trained_rows(chunks)
        batch = self._batch_of(chunks)
        if not getattr(self._algorithm, "takes_frames", False):
            batch = with_stacks(batch)
        chunks.clear()  # the batch is a copy: the chunks' shared memory is free again
        self._seconds["assemble"] += perf_counter() - begin
        for use in range(self.settings.trainers.reuse):
            begin = perf_counter()
            with self._idle:
                staleness = self.version - versions
                metrics = self._algorithm.update(batch, self._current_progress())
                self.version += 1
                self.rows_trained_fresh += rows if use == 0 else 0
                self.rows_trained_total += rows
            updated = perf_counter()
            self._seconds["update"] += updated - begin
            metrics["staleness_mean"] = float(staleness.mean())
            metrics["staleness_max"] = float(staleness.max())
            self._updates.append(UpdateRecord(self.version, metrics))
            self._publish()
            self._buffer.set_version(self.version)
            self._seconds["publish"] += perf_counter() - updated

    def _batch_of(self, chunks: list[Chunk]) -> dict[str, torch.Tensor]:
        """Assemble them, and begin with the next batch if it is there already: it will be trained after this one."""
        config = self.settings.trainers
        if not (self._device.type == "cuda" if config.prefetch is None else config.prefetch):
            return assemble(chunks, self._device)
        self._prefetcher = self._prefetcher or Prefetcher(self._device)
        batch = self._prefetcher.batch_of(chunks)
        following = self._buffer.peek(ahead=config.reuse)
        if following is not None:
            self._prefetcher.foresee(following)
        return batch

    def _current_progress(self) -> float:
        """In deterministic mode from the rows trained, which do not depend on when the driver looks."""
        total = self.settings.total_env_steps
        if not self.settings.deterministic or total is None:
            return self._progress
        return min(1.0, (self._rows_before + self.rows_trained_fresh) / (total * self._spec.group.num_agents))

    def _publish(self) -> None:
        if self.settings.rank == 0:
            self._parameters.publish(snapshot(self._policy), epoch=self.settings.epoch, version=self.version)
