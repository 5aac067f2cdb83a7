"""The actor worker: a ring of environment blocks, stepped one after the other while the others wait for answers."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time, time
from typing import Any

import numpy as np

from srl_ray.actors.config import ActorsConfig
from srl_ray.actors.lanes import Chunks, LaneTable, Request
from srl_ray.actors.ring import RingTimes, measure_block
from srl_ray.core.seeding import derive_seed
from srl_ray.core.types import BlockSpec, ChunkLayout, EpisodeRecord
from srl_ray.envs.block import EnvBlock
from srl_ray.envs.config import EnvConfig
from srl_ray.models.config import PolicyConfig
from srl_ray.streams.inference import InferenceClient, InferenceRequest, PolicySignature
from srl_ray.streams.sample_buffer import ChunkMessage
from srl_ray.streams.samples import SampleSink

_EPISODES_KEPT = 20_000
_OUTBOX_S = 0.02
"""Completed chunks wait this long for others of their block, so that fewer messages are sent."""
_ASK_S = 0.02
"""Shortest time between two questions for grants of a block that had better go on."""


@dataclass(frozen=True)
class ActorSettings:
    """What an actor worker is told before it starts.

    Attributes:
        index: Index among actor workers.
        epoch: Generation; a replacement has a higher one.
        seed: The run's base seed.
        inline: Infer in this process, with a copy of the policy.
        namespace: Of the parameter service.
        policy_name: Lineage whose weights are used.
        transport: See `policy_workers.transport`.
        deterministic: See `run.deterministic`.
        num_threads: Math threads.
        use_gpu: Infer on the GPU that Ray assigned.
    """

    index: int
    epoch: int
    seed: int
    env: EnvConfig
    actors: ActorsConfig
    policy: PolicyConfig
    layout: ChunkLayout
    inline: bool
    namespace: str
    policy_name: str
    transport: str = "auto"
    deterministic: bool = False
    num_threads: int = 1
    use_gpu: bool = False


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode as it is reported: when it ended, where, and what the environment said of it."""

    number: int
    time_s: float
    worker: int
    slot: int
    policy_version: int
    record: EpisodeRecord


@dataclass
class ActorReport:
    """Counters since this worker's start, and the episodes that were not acknowledged yet.

    Attributes:
        unrecorded_rows: Rows of lanes that had no grant.
        seconds: Stage → seconds of the worker's thread: env (and env/<stage> where the block tells), inference, rows,
            push, wait (for grants), weights; and processor: of all threads of the process.
        step_started_s: Wall-clock time at which the environment call under way began; 0: none.
    """

    index: int
    epoch: int
    env_steps: int = 0
    agent_steps: int = 0
    frames: int = 0
    chunks: int = 0
    lost_chunks: int = 0
    unrecorded_rows: int = 0
    resends: int = 0
    discarded_episodes: int = 0
    step_started_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    episodes: list[FinishedEpisode] = field(default_factory=list)


@dataclass
class _Slot:
    """One block of the ring and where it stands.

    Attributes:
        index: Its place in the ring.
        phase: reply: waits for the policy's answer; grant: no lane may record; go: may be stepped.
        credits: Grants in hand that no lane uses yet, of trainer epoch `credit_epoch`.
        newest: (epoch, version) that the newest of these grants demands.
        awaited: The sample buffer said last that the next batch needs chunks of this block.
        asked_s: When the last question for grants was sent.
        outbox: Completed chunks that are not pushed yet.
        outbox_since: When the first of them was completed.
        version: Policy version behind the last answer.
        num_stepping: Environments that the next block step advances; one that ended and is not present is only reset.
    """

    index: int
    block: EnvBlock
    lanes: LaneTable
    phase: str = "reply"
    request: Request | None = None
    credits: int = 0
    credit_epoch: int = -1
    newest: tuple[int, int] = (-1, -1)
    awaited: bool = False
    asked_s: float = 0.0
    outbox: list[Chunks] = field(default_factory=list)
    outbox_since: float = 0.0
    version: int = -1
    num_stepping: int = 0


class ActorWorker:
    """Steps a ring of environment blocks, gets actions, ships chunks. A plain class; Ray is put on elsewhere.

    Lifecycle:   setup() → connect() → [measure() → split() → connect() →] run() … stop() → run returns
    Threads:     setup, connect, measure, split and run in one thread; report, rewire and stop in any other.
    """

    def __init__(self, settings: ActorSettings) -> None:
        self.settings = settings
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._report = ActorReport(settings.index, settings.epoch)
        self._seconds = dict.fromkeys(("env", "inference", "rows", "push", "wait", "weights"), 0.0)
        self._lookahead = max(1, settings.layout.sample_steps // 4)
        self._episodes: deque[FinishedEpisode] = deque(maxlen=_EPISODES_KEPT)
        self._episode_number = 0
        self._blocks: list[EnvBlock] = []
        self._ring: list[_Slot] = []
        self._inference: InferenceClient | None = None
        self._samples: SampleSink | None = None

    # ------------------------------------------------------------------------------------------------------- control

    def setup(self) -> BlockSpec:
        """Build the environments. Worker 0 checks the environment's contract first.

        Raises:
            EnvironmentFault: the environment breaks the contract or cannot be built.
            ConfigError: it does not exist.
        """
        settings = self.settings
        if settings.inline:
            import srl_ray.streams.inline  # noqa: F401  brings torch, while the trainer workers do the same
        if settings.index == 0 and settings.epoch == 0:
            from srl_ray.envs.contract import check_contract

            check_contract(settings.env)
        self._make_blocks()
        return self._blocks[0].spec

    def measure(self) -> RingTimes:
        """Step the first block for a second, without recording, and say what takes how long.

        After `connect`, which has to be called again before `run`. Waits for the policy worker's weights.
        """
        assert self._inference is not None
        self._inference.install(0, 0)
        slot, settings = self._ring[0], self.settings
        seed = derive_seed(settings.seed, "measure", settings.index)
        return measure_block(slot.block, slot.lanes, self._inference, seed, settings.actors.weights_timeout_s)

    def split(self, settings: ActorSettings) -> None:
        """Step the environments in as many blocks as these settings say; `connect` has to be called again."""
        assert self._inference is not None
        self._inference.close()
        self.settings = settings
        if settings.actors.ring != len(self._blocks):
            for block in self._blocks:
                block.close()
            self._make_blocks()

    def _make_blocks(self) -> None:
        from srl_ray.envs.factory import make_block

        env, actors = self.settings.env, self.settings.actors
        self._blocks = [make_block(env, stagger_steps=actors.stagger_steps) for _ in range(actors.ring)]

    def connect(
        self, signature: PolicySignature | None, policy_worker: Any, trainers: Sequence[Any]
    ) -> dict[str, float]:
        """Join the streams.

        Args:
            signature: Of the policy, for remote inference.
            policy_worker: Handle, for remote inference.
            trainers: Handles of all trainer workers.

        Returns:
            Facts about this process: resident memory in bytes, whether torch is loaded, whether requests travel through
            shared memory.
        """
        settings, spec = self.settings, self._blocks[0].spec
        if settings.inline:
            self._inference = make_inline(settings, spec)
        else:
            assert signature is not None
            self._inference = make_remote(settings, spec, signature, policy_worker)
        self._samples = SampleSink(settings.index, settings.epoch, settings.actors.ring, trainers)
        known = self._inference.signature
        self._ring = [
            _Slot(index, block, LaneTable(block.spec, settings.layout, known.action, known.state_size))
            for index, block in enumerate(self._blocks)
        ]
        shares_memory = getattr(self._inference, "transport", "") == "shared_memory"
        return {**process_facts(), "shared_memory": float(shares_memory)}

    def rewire(self, policy_worker: Any = None, trainers: Sequence[Any] | None = None) -> None:
        """Use these handles from now on; None leaves a stream as it is."""
        if policy_worker is not None and self._inference is not None:
            self._inference.rewire(policy_worker)  # type: ignore[attr-defined]
        if trainers is not None and self._samples is not None:
            self._samples.rewire(trainers)

    def stop(self) -> None:
        """Have `run` return after the call under way."""
        self._stop.set()

    def report(self, acknowledged: int) -> ActorReport:
        """Counters and the episodes numbered above `acknowledged`."""
        with self._lock:
            while self._episodes and self._episodes[0].number <= acknowledged:
                self._episodes.popleft()
            report = ActorReport(**{**vars(self._report), "episodes": list(self._episodes)})
        report.seconds = {**self._seconds, "processor": process_time()}
        for block in self._blocks:  # a block may say where its own time goes
            for stage, seconds in getattr(block, "stage_seconds", {}).items():
                report.seconds[f"env/{stage}"] = report.seconds.get(f"env/{stage}", 0.0) + seconds
        if self._samples is not None:
            report.lost_chunks = self._samples.lost_chunks
        report.unrecorded_rows = sum(slot.lanes.unrecorded_rows for slot in self._ring)
        report.resends = getattr(self._inference, "resends", 0)
        return report

    # ----------------------------------------------------------------------------------------------------------- run

    def run(self) -> ActorReport:
        """Step until `stop`; returns the final report. Raises what an environment raised."""
        assert self._inference is not None
        try:
            self._inference.install(0, 0)
            for slot in self._ring:
                seed = derive_seed(self.settings.seed, "env", self.settings.index, slot.index, self.settings.epoch)
                slot.request = self._observe(slot, self._timed_step(slot, seed=seed))
                self._post(slot)
            while not self._stop.is_set():
                for slot in self._ring:
                    self._advance(slot)
                if all(slot.phase == "grant" for slot in self._ring):
                    self._collect_grants(deadline_s=0.2)
                    if self.settings.deterministic:
                        self._stop.wait(_ASK_S)  # other workers complete the batch
            return self.report(-1)
        finally:
            for block in self._blocks:
                block.close()
            self._inference.close()

    def _advance(self, slot: _Slot) -> None:
        """Move one block on as far as it goes without waiting for a grant."""
        if slot.phase == "reply" and not self._answer(slot):
            return
        self._use_grants(slot)
        if slot.phase == "go":
            slot.request = self._observe(slot, self._timed_step(slot))
            self._post(slot)

    def _timed_step(self, slot: _Slot, seed: int | None = None) -> Any:
        begin = perf_counter()
        self._report.step_started_s = time()
        step = slot.block.reset(seed) if seed is not None else slot.block.step(slot.lanes.actions)
        self._report.step_started_s = 0.0
        self._seconds["env"] += perf_counter() - begin
        return step

    def _observe(self, slot: _Slot, step: Any) -> Request:
        begin = perf_counter()
        request = slot.lanes.observe(step)
        report, spec = self._report, slot.block.spec
        report.env_steps += slot.num_stepping
        report.frames += slot.num_stepping * spec.frame_skip
        slot.num_stepping = spec.num_envs
        if request.num_acting < spec.num_lanes:
            ended = (step.terminated | step.truncated).any(axis=1)
            slot.num_stepping -= int(np.count_nonzero(ended & ~step.present.any(axis=1)))
        report.agent_steps += request.num_acting
        if step.episodes:
            self._record(slot, step.episodes)
        self._seconds["rows"] += perf_counter() - begin
        return request

    def _record(self, slot: _Slot, records: list[EpisodeRecord]) -> None:
        with self._lock:
            for record in records:
                self._episode_number += 1
                self._report.discarded_episodes += record.discarded
                self._episodes.append(
                    FinishedEpisode(self._episode_number, time(), self.settings.index, slot.index, slot.version, record)
                )

    def _post(self, slot: _Slot) -> None:
        assert slot.request is not None
        assert self._inference is not None
        request = slot.request
        nobody = np.zeros(request.num_rows, np.bool_)
        self._inference.post(
            slot.index, InferenceRequest(request.obs, request.state, request.on_reset, nobody, request.device_obs)
        )
        slot.phase = "reply"

    def _answer(self, slot: _Slot) -> bool:
        """Take the policy's answer and collect the chunks it completes; False if it is not there yet."""
        assert self._inference is not None
        assert slot.request is not None
        begin = perf_counter()
        reply = self._inference.take(slot.index, 1.0)
        taken = perf_counter()
        self._seconds["inference"] += taken - begin
        if reply is None:
            return False
        slot.lanes.answer(slot.request, reply)
        slot.version = reply.version
        chunks = slot.lanes.ship()
        slot.credits += slot.lanes.take_released(slot.credit_epoch)
        if chunks is not None:
            slot.outbox_since = slot.outbox_since if slot.outbox else taken
            slot.outbox.append(chunks)
        self._seconds["rows"] += perf_counter() - taken
        slot.phase = "go"
        return True

    def _use_grants(self, slot: _Slot) -> None:
        """Give the lanes the grants in hand, ask for more ahead of time, and push what is due.

        A block with lanes that have no grant waits for it, unless the next batch is waiting for the lanes that record:
        then these go on and the others step unrecorded.
        """
        assert self._samples is not None
        if self.settings.deterministic:
            self._settle(slot)
        elif self._samples.has_answers_due(slot.index):
            self._collect_grants(deadline_s=0.0)
        lanes = slot.lanes
        waiting = lanes.ungranted()
        if len(waiting) and slot.credits:
            waiting = waiting[: slot.credits]
            slot.credits -= len(waiting)
            lanes.grant(waiting, slot.credit_epoch)
            if self._ask_again(slot, waiting):
                return
        if not self.settings.deterministic:
            self._push(slot)
        is_free = lanes.is_recording and (slot.awaited or not len(lanes.ungranted()))
        slot.phase = "go" if is_free else "grant"

    def _settle(self, slot: _Slot) -> None:
        """Deterministic mode: deliver at once, then wait until every lane has its grant or training waits for others.

        Which lane records which step then does not depend on how fast anybody is.
        """
        assert self._samples is not None
        if slot.outbox:
            self._report.chunks += sum(len(chunks.lanes) for chunks in slot.outbox)
            self._samples.push(slot.index, join_chunks(slot.outbox), 0)
            slot.outbox = []
            self._await_answers(slot)
        while (want := len(slot.lanes.ungranted()) - slot.credits) > 0 and not self._stop.is_set():
            self._samples.ask(slot.index, want)
            self._await_answers(slot)
            if slot.awaited:
                break

    def _await_answers(self, slot: _Slot) -> None:
        assert self._samples is not None
        while self._samples.has_answers_due(slot.index) and not self._stop.is_set():
            self._collect_grants(deadline_s=0.2)

    def _ask_again(self, slot: _Slot, lanes: np.ndarray) -> bool:
        """Install the weights that came with the grants; rows answered by older ones are asked again."""
        assert self._inference is not None
        lanes = slot.lanes.answered_before(lanes, slot.newest)
        if not len(lanes):
            return False
        begin = perf_counter()
        self._inference.install(*slot.newest)
        self._seconds["weights"] += perf_counter() - begin
        slot.request = slot.lanes.ask_again(lanes)
        self._post(slot)
        return True

    def _push(self, slot: _Slot) -> None:
        """Push completed chunks together where that costs no waiting, and ask for the grants needed soon."""
        assert self._samples is not None
        samples, begin = self._samples, perf_counter()
        is_stuck = not slot.lanes.is_recording
        some = max(1, slot.lanes.num_lanes // 4)
        num_chunks = sum(len(chunks.lanes) for chunks in slot.outbox)
        want = max(0, slot.lanes.wanted(self._lookahead) - slot.credits - samples.asked(slot.index))
        is_due = is_stuck or num_chunks >= some or begin - slot.outbox_since > _OUTBOX_S
        if num_chunks and is_due and samples.may_push(slot.index):
            samples.push(slot.index, join_chunks(slot.outbox), want)
            slot.outbox = []
            self._report.chunks += num_chunks
            slot.asked_s = begin
        elif want >= (1 if len(slot.lanes.ungranted()) else some) and begin - slot.asked_s > slot.awaited * _ASK_S:
            samples.ask(slot.index, want)
            slot.asked_s = begin
        self._seconds["push"] += perf_counter() - begin

    def _collect_grants(self, deadline_s: float) -> None:
        """Take in what the sample buffers answered; waits for the first answer, at most `deadline_s`."""
        assert self._samples is not None
        begin = perf_counter()
        answers = self._samples.poll(deadline_s)
        self._seconds["wait"] += perf_counter() - begin
        for index, grant in answers:
            slot = self._ring[index]
            if grant.closed:
                self._stop.wait(0.1)
                continue
            slot.awaited = grant.awaited
            if slot.credit_epoch != grant.epoch:
                slot.credits, slot.credit_epoch = 0, grant.epoch
            slot.credits += grant.granted
            slot.newest = max(slot.newest, (grant.epoch, grant.version))


def join_chunks(outbox: Sequence[Chunks]) -> ChunkMessage:
    """One message of several completions: chunks side by side."""
    first = outbox[0]
    if len(outbox) == 1:
        arrays = first.arrays
    else:
        arrays = {name: np.concatenate([c.arrays[name] for c in outbox], axis=1) for name in first.arrays}

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(chunks, name) for chunks in outbox])

    return ChunkMessage(
        arrays, joined("lanes"), joined("oldest_version"), joined("trained_rows"), joined("trainer_epoch")
    )


def make_inline(settings: ActorSettings, spec: BlockSpec) -> InferenceClient:
    """A copy of the policy in this process; imports torch."""
    import torch

    from srl_ray.models.compilation import compile_inference, graph_inference
    from srl_ray.models.factory import make_policy
    from srl_ray.param_server.client import ParameterClient
    from srl_ray.streams.inline import InlineInference, NoiseKey

    torch.set_num_threads(settings.num_threads)
    policy = make_policy(settings.policy, spec.group.obs, spec.group.action, settings.seed)
    policy.eval()  # type: ignore[attr-defined]
    device = torch.device("cuda" if settings.use_gpu else "cpu")
    policy.to(device)  # type: ignore[attr-defined]
    if settings.policy.is_inference_compiled:
        compile_inference(policy, spec.group.obs)
    if settings.policy.cuda_graphs:
        graph_inference(policy)
    return InlineInference(
        policy,
        ParameterClient(settings.namespace, settings.policy_name),
        NoiseKey(derive_seed(settings.seed, "actor", settings.epoch), settings.index),
        joint=not settings.deterministic,
        weights_timeout_s=settings.actors.weights_timeout_s,
        device=device,
    )


def make_remote(
    settings: ActorSettings, spec: BlockSpec, signature: PolicySignature, policy_worker: Any
) -> InferenceClient:
    """A client of a policy worker; imports no torch."""
    from srl_ray.streams.remote import Connector, RemoteInference

    connector = Connector(
        settings.index,
        settings.epoch,
        spec.group.obs,
        signature,
        slots=settings.actors.ring,
        capacity=2 * spec.num_lanes,  # a lane's final row and its next first one can be asked together
        transport=settings.transport,
    )
    return RemoteInference(
        settings.index,
        settings.epoch,
        connector,
        policy_worker,
        signature,
        resend_after_s=settings.actors.inference_timeout_s,
    )


def process_facts() -> dict[str, float]:
    """Resident memory in bytes and whether torch is loaded, of this process."""
    import sys

    import psutil

    return {
        "rss_bytes": float(psutil.Process(os.getpid()).memory_info().rss),
        "torch": float("torch" in sys.modules),
        "pid": float(os.getpid()),
    }
