"""The workers of a run: who there is, how they are started and wired, how one is replaced, how all are stopped."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from srl_ray.actors.ring import MOST_BLOCKS, choose_ring
from srl_ray.actors.worker import ActorReport, ActorSettings, ActorWorker
from srl_ray.config import ExperimentConfig
from srl_ray.core.errors import ConfigError
from srl_ray.core.types import BlockSpec, ChunkLayout
from srl_ray.param_server.service import start_parameter_service, stop_parameter_service
from srl_ray.param_server.store import NOTHING
from srl_ray.placement.groups import Reservation
from srl_ray.policy.worker import PolicyWorker, PolicyWorkerReport, PolicyWorkerSettings
from srl_ray.runtime.checkpoint import Checkpoint, require
from srl_ray.runtime.worker_group import WorkerGroup, WorkerOptions, await_all, math_threads
from srl_ray.streams.samples import THREADS_PER_BLOCK
from srl_ray.trainer.worker import TrainerReport, TrainerSettings, TrainerWorker

_LOG = logging.getLogger(__name__)
POLICY_NAME = "main"
_SERVICE_DEATH_S = 1e9


@dataclass
class Reports:
    """Everybody's answer to one round of questions."""

    actors: list[ActorReport] = field(default_factory=list)
    trainers: list[TrainerReport] = field(default_factory=list)
    policy_workers: list[PolicyWorkerReport] = field(default_factory=list)


class Crew:
    """Starts, wires, replaces and stops the workers. `replace` may run in a thread of its own, one at a time.

    Lifecycle:   start() → begin() → … replace() … → stop() → end()
    """

    def __init__(self, config: ExperimentConfig, reservation: Reservation, run_id: str, run_dir: Path) -> None:
        self.config = config
        self.reservation = reservation
        self.run_id = run_id
        self.run_dir = run_dir
        self.layout = ChunkLayout(
            config.actors.burn_in, config.actors.sample_steps, config.actors.bootstrap, config.segment_steps
        )
        self._chooses_ring = config.actors.ring_size == "auto" and config.inference == "remote"
        blocks = config.actors.count * (MOST_BLOCKS if self._chooses_ring else config.actors.ring)
        threads = THREADS_PER_BLOCK * -(-blocks // config.trainers.count) + 2
        self.trainers = WorkerGroup(
            "trainer",
            TrainerWorker,
            reservation,
            WorkerOptions(
                control_methods=("report", "save", "set_progress", "forget_actor", "republish"),
                groups={"samples": (threads, ("push", "ask"))},
            ),
        )
        self.policy_workers = WorkerGroup("policy_worker", PolicyWorker, reservation)
        self.actors = WorkerGroup("actor", ActorWorker, reservation, WorkerOptions(control_methods=("report",)))
        self._epochs = {"trainer": 0, "actor": {}, "policy_worker": {}}  # type: dict[str, Any]
        self._running: dict[Any, tuple[str, int]] = {}
        self._acknowledged: dict[tuple[str, int, int], int] = {}
        self._asked: dict[Any, tuple[str, int, int]] = {}
        self._progress = 0.0
        self._service: Any = None
        self._stopping = False

    # --------------------------------------------------------------------------------------------------------- start

    def start(self, checkpoint: Checkpoint | None) -> BlockSpec:
        """Bring everybody to where `begin` can let them run; returns what the environments offer.

        All processes come up at the same time; the environments' spec is what the others wait for.

        Raises:
            CheckpointError: it was made with other spaces, or does not fit the network.
        """
        config, deadline_s = self.config, self.config.start_timeout_s
        self._start_service()
        for index in range(config.actors.count):
            self.actors.start(index, self._actor_settings(index))
        for rank in range(config.trainers.count):
            self.trainers.start(rank, self._trainer_settings(rank, checkpoint.path if checkpoint else None))
        for index in range(config.policy_workers.count):
            self.policy_workers.start(index, self._policy_settings(index))
        specs = self.actors.setup({i: () for i in self.actors.handles}, deadline_s=deadline_s)
        self.spec: BlockSpec = specs[0]
        if checkpoint is not None:
            require(checkpoint.path, {"spaces": checkpoint.facts.get("spaces")}, {"spaces": spaces_of(self.spec)})
        self._check_lanes()
        self._set_up_trainers()
        self.policy_workers.setup({i: (self.spec,) for i in self.policy_workers.handles}, deadline_s=deadline_s)
        return self.spec

    def begin(self) -> None:
        """Publish the first version, wire the actor workers, let everybody run."""
        self._begin_trainers()
        for index in self.policy_workers.handles:
            self._let_run("policy_worker", index)
        facts = self._connect_all()
        if self._chooses_ring:
            self._choose_ring()
            facts = self._connect_all()
        rss = max(f["rss_bytes"] for f in facts.values()) / 2**20
        torch = "with" if any(f["torch"] for f in facts.values()) else "without"
        _LOG.info("%d actor worker(s), %.0f MiB each, %s torch", len(facts), rss, torch)
        if self.config.inference == "remote":
            sharing = sum(1 for f in facts.values() if f["shared_memory"])
            _LOG.info("inference: %d through shared memory, %d through Ray calls", sharing, len(facts) - sharing)
        for index in self.actors.handles:
            self._let_run("actor", index)

    def _start_service(self) -> None:
        self._service = start_parameter_service(self.run_id, self.run_dir / "parameters")
        # answered by nobody: its failure is the news of the service's death
        self._running[self._service.wait_newer.remote("nobody's", NOTHING, _SERVICE_DEATH_S)] = ("service", 0)

    def _set_up_trainers(self) -> None:
        deadline_s = self.config.start_timeout_s
        signatures = self.trainers.setup({i: (self.spec,) for i in self.trainers.handles}, deadline_s=deadline_s)
        self.signature = signatures[0]
        if self.config.trainers.count > 1:
            address = ray.get(self.trainers.handles[0].free_address.remote(), timeout=deadline_s)
            refs = {i: handle.join_group.remote(address) for i, handle in self.trainers.handles.items()}
            await_all(refs, role="trainer", what="join_group()", deadline_s=deadline_s)

    def _begin_trainers(self) -> None:
        self.set_progress(self._progress)  # or the first update of a new group would begin the schedules anew
        refs = {i: handle.begin.remote() for i, handle in self.trainers.handles.items()}
        await_all(refs, role="trainer", what="begin()", deadline_s=self.config.start_timeout_s)
        for index in self.trainers.handles:
            self._let_run("trainer", index)

    def _connect_all(self) -> Mapping[int, dict[str, float]]:
        refs = {i: self._connect(i) for i in self.actors.handles}
        return await_all(refs, role="actor", what="connect()", deadline_s=self.config.start_timeout_s)

    def _choose_ring(self) -> None:
        """Have the actor workers measure, and split their environments into as many blocks as hide the inference."""
        config, deadline_s = self.config, self.config.start_timeout_s
        measured = {i: handle.measure.remote() for i, handle in self.actors.handles.items()}
        times = await_all(measured, role="actor", what="measure()", deadline_s=deadline_s)
        num_envs = config.env.envs_per_block
        ring, typical = choose_ring(list(times.values()), num_envs)
        self.config = replace(
            config,
            actors=replace(config.actors, ring_size=ring),
            env=replace(config.env, envs_per_block=num_envs // ring),
        )
        split = {i: handle.split.remote(self._actor_settings(i)) for i, handle in self.actors.handles.items()}
        await_all(split, role="actor", what="split()", deadline_s=deadline_s)
        _LOG.info(
            "ring: %d block%s of %d environments (step of all %.2f ms, handling %.2f ms, inference %.2f ms)%s",
            ring,
            "" if ring == 1 else "s",
            num_envs // ring,
            *(1e3 * seconds for seconds in (typical.step_s, typical.handling_s, typical.inference_s)),
            "; more env.envs_per_block would hide the rest" if typical.inference_s > typical.step_s else "",
        )

    def _connect(self, index: int) -> Any:
        return self.actors.handles[index].connect.remote(
            self.signature, self._policy_worker_of(index), self._trainer_handles()
        )

    def _let_run(self, role: str, index: int) -> None:
        self._running[self._group(role).handles[index].run.remote()] = (role, index)

    def _policy_worker_of(self, actor: int) -> Any:
        workers = self.policy_workers.handles
        return workers.get(actor % self.config.policy_workers.count) if workers else None

    def _trainer_handles(self) -> list[Any]:
        return [self.trainers.handles[rank] for rank in sorted(self.trainers.handles)]

    def _group(self, role: str) -> WorkerGroup:
        return {"trainer": self.trainers, "policy_worker": self.policy_workers, "actor": self.actors}[role]

    def _check_lanes(self) -> None:
        """Chunks that are open at the same time must fit the staleness budget."""
        config = self.config
        lanes = self.spec.num_lanes * config.actors.count * config.actors.ring
        if config.run.deterministic and lanes != config.trainers.batch_chunks:
            raise ConfigError(
                "run.deterministic=true needs one chunk of every lane in a batch: trainers.batch_chunks must be "
                f"{lanes} (actors.count × actors.ring_size × env.envs_per_block × agents), got "
                f"{config.trainers.batch_chunks}."
            )
        staleness = config.trainers.max_staleness
        if staleness is None:
            return
        recording = config.trainers.batch_chunks * max(1, (staleness + 1) // config.trainers.reuse - 1)
        if lanes > recording:
            _LOG.warning(
                "%d lanes (actors.count × actors.ring_size × env.envs_per_block × agents) share %d chunks beside the "
                "batch that is trained (trainers.batch_chunks × trainers.max_staleness): when all agents are present, "
                "the others wait or step unrecorded. Raise trainers.batch_chunks or trainers.max_staleness, or lower "
                "env.envs_per_block.",
                lanes,
                recording,
            )

    # ------------------------------------------------------------------------------------------------------ settings

    def _threads(self, role: str) -> int:
        return math_threads(self.reservation.plan.share(role))

    def _actor_settings(self, index: int) -> ActorSettings:
        config = self.config
        return ActorSettings(
            index=index,
            epoch=self._epochs["actor"].get(index, 0),
            seed=config.run.seed,
            env=config.env,
            actors=config.actors,
            policy=config.policy,
            layout=self.layout,
            inline=config.inference == "inline",
            namespace=self.run_id,
            policy_name=POLICY_NAME,
            transport=config.policy_workers.transport,
            deterministic=config.run.deterministic,
            num_threads=self._threads("actor"),
            use_gpu=config.actors.gpus > 0,
        )

    def _policy_settings(self, index: int) -> PolicyWorkerSettings:
        config = self.config
        return PolicyWorkerSettings(
            index=index,
            epoch=self._epochs["policy_worker"].get(index, 0),
            seed=config.run.seed,
            workers=config.policy_workers,
            policy=config.policy,
            namespace=self.run_id,
            policy_name=POLICY_NAME,
            num_threads=self._threads("policy_worker"),
            use_gpu=config.policy_workers.gpus > 0,
        )

    def _trainer_settings(self, rank: int, checkpoint: Path | None) -> TrainerSettings:
        config = self.config
        return TrainerSettings(
            rank=rank,
            epoch=self._epochs["trainer"],
            seed=config.run.seed,
            trainers=config.trainers,
            algorithm=config.algorithm,
            policy=config.policy,
            layout=self.layout,
            namespace=self.run_id,
            policy_name=POLICY_NAME,
            total_env_steps=config.stop.env_steps,
            checkpoint=str(checkpoint.absolute()) if checkpoint else "",
            buffer_bytes=config.trainers.buffer_bytes or self._default_buffer_bytes(),
            deterministic=config.run.deterministic,
            num_blocks=config.actors.count * config.actors.ring,
            num_threads=self._threads("trainer"),
            use_gpu=config.trainers.gpus > 0,
        )

    def _default_buffer_bytes(self) -> int:
        """30 % of the smallest object store, shared by the trainer workers."""
        stores = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"]]
        smallest = min((store for store in stores if store), default=2**30)
        return int(0.3 * smallest / self.config.trainers.count)

    # ----------------------------------------------------------------------------------------------------- supervising

    def failures(self, timeout_s: float) -> Iterator[tuple[str, int, BaseException]]:
        """Workers whose `run` ended with an error since the last call; waits for the first, at most `timeout_s`."""
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_s)
        for ref in ended:
            who = self._running.pop(ref, None)
            if who is None:  # replaced in the meantime
                continue
            role, index = who
            try:
                ray.get(ref)
            except Exception as error:  # a worker's own exception may be of any type; the failure policy decides
                yield role, index, error
            else:
                if not self._stopping:
                    yield role, index, RuntimeError(f"{role} {index} returned from run() before it was told to stop")

    def replace(self, role: str, index: int, delay_s: float, checkpoint: Path | None) -> None:
        """Start a failed worker (for trainers: the whole group) anew and rewire the survivors. Blocks.

        Raises:
            Exception: the replacement could not be started; the failure policy decides again.
        """
        time.sleep(delay_s)
        if role == "service":
            self._start_service()
            with contextlib.suppress(RayError):  # a trainer that died too publishes when it is replaced
                ray.get(self.trainers.handles[0].republish.remote(), timeout=self.config.start_timeout_s)
        elif role == "trainer":
            self._replace_trainers(checkpoint)
        elif role == "policy_worker":
            self._replace_policy_worker(index)
        else:
            self._replace_actor(index)

    def _replace_actor(self, index: int) -> None:
        self._unwatch("actor", [index])
        epoch = self._epochs["actor"][index] = self._epochs["actor"].get(index, 0) + 1
        forgotten = [handle.forget_actor.remote(index, epoch) for handle in self._trainer_handles()]
        self.actors.start(index, self._actor_settings(index))
        self.actors.setup({index: ()}, deadline_s=self.config.start_timeout_s)
        ray.get([*forgotten, self._connect(index)], timeout=self.config.start_timeout_s)
        self._let_run("actor", index)

    def _replace_policy_worker(self, index: int) -> None:
        self._unwatch("policy_worker", [index])
        self._epochs["policy_worker"][index] = self._epochs["policy_worker"].get(index, 0) + 1
        self.policy_workers.start(index, self._policy_settings(index))
        self.policy_workers.setup({index: (self.spec,)}, deadline_s=self.config.start_timeout_s)
        self._let_run("policy_worker", index)
        for actor, handle in self.actors.handles.items():
            if actor % self.config.policy_workers.count == index:
                handle.rewire.remote(policy_worker=self.policy_workers.handles[index])

    def _replace_trainers(self, checkpoint: Path | None) -> None:
        """The whole group: the survivors of a broken collective cannot go on without the lost rank's gradients."""
        ranks = list(range(self.config.trainers.count))
        self._unwatch("trainer", ranks)
        self._epochs["trainer"] += 1
        for rank in ranks:
            self.trainers.start(rank, self._trainer_settings(rank, checkpoint))
        self._set_up_trainers()
        epochs = self._epochs["actor"].items()
        forgotten = [h.forget_actor.remote(actor, epoch) for h in self._trainer_handles() for actor, epoch in epochs]
        ray.get(forgotten, timeout=self.config.start_timeout_s)
        self._begin_trainers()
        for handle in self.actors.handles.values():
            handle.rewire.remote(trainers=self._trainer_handles())

    def _unwatch(self, role: str, indices: list[int]) -> None:
        for ref in [ref for ref, who in list(self._running.items()) if who[0] == role and who[1] in indices]:
            self._running.pop(ref, None)

    def reports(self, deadline_s: float) -> Reports:
        """Ask everybody who does not owe an answer yet, and collect the answers that come within the deadline."""
        owing = set(self._asked.values())
        for role in ("actor", "trainer", "policy_worker"):
            for index, handle in list(self._group(role).handles.items()):
                epoch = self._epochs["trainer"] if role == "trainer" else self._epochs[role].get(index, 0)
                key = (role, index, epoch)
                if key not in owing:
                    arguments = () if role == "policy_worker" else (self._acknowledged.get(key, -1),)
                    self._asked[handle.report.remote(*arguments)] = key
        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=deadline_s)
        reports = Reports()
        for ref in ready:
            key = self._asked.pop(ref)
            try:
                report = ray.get(ref)
            except RayError:
                continue  # its run ref tells why
            if key[0] == "actor":
                reports.actors.append(report)
                if report.episodes:
                    self._acknowledged[key] = report.episodes[-1].number
            elif key[0] == "trainer":
                reports.trainers.append(report)
                self._acknowledged[key] = report.version
            else:
                reports.policy_workers.append(report)
        return reports

    def set_progress(self, progress: float) -> None:
        """Tell the trainer workers, and those that replace them, how much of stop.env_steps is done."""
        self._progress = progress
        for handle in self.trainers.handles.values():
            handle.set_progress.remote(progress)

    def save(self, target: Path, facts: dict[str, Any]) -> str:
        """Have rank 0 write a checkpoint; returns its path. Blocks until it is on disk."""
        saved = self.trainers.handles[0].save.remote(str(target.absolute()), facts)
        return str(ray.get(saved, timeout=60.0))

    def whereabouts(self) -> str:
        """Who is alive and who does not answer, in words."""
        reports = self.reports(2.0)
        silent = self.config.actors.count - len(reports.actors)
        steps = ", ".join(f"actor {r.index}: {r.env_steps} env steps" for r in reports.actors[:4])
        buffers = ", ".join(f"trainer {r.rank}: version {r.version}, buffer {r.buffer}" for r in reports.trainers)
        return f"{silent} actor worker(s) silent; {steps}; {buffers}"

    # ----------------------------------------------------------------------------------------------------------- end

    def stop(self, deadline_s: float = 5.0) -> None:
        """Let everybody finish, in the order of the data: actors, policy workers, trainers."""
        self._stopping = True
        for role in ("actor", "policy_worker", "trainer"):
            group = self._group(role)
            group.call_all("stop", deadline_s=2.0)
            refs = [ref for ref, who in self._running.items() if who[0] == role]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=deadline_s)

    def end(self, *, flush_s: float = 0.0) -> None:
        """End every process of the run at once; harmless after `stop`.

        Args:
            flush_s: How long the parameter service may take to write its last versions; 0: they are in the checkpoint.
        """
        for group in (self.actors, self.policy_workers, self.trainers):
            group.kill_all()
        if self._service is not None:
            service, self._service = self._service, None
            if flush_s:
                stop_parameter_service(service, deadline_s=flush_s)
            else:
                ray.kill(service)


def spaces_of(spec: BlockSpec) -> dict[str, Any]:
    """Observations and actions as a checkpoint notes them: field → [shape, dtype], and the actions in words."""
    obs = {name: [list(field.shape), str(field.dtype)] for name, field in spec.group.obs.items()}
    return {"obs": obs, "action": repr(spec.group.action)}
