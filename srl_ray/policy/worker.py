"""The policy worker: joins the requests of many actor workers into batches. An asyncio actor.

Everything lives in one event loop; the network computes in one executor thread, so that requests are received while a
batch is computed. Whatever is pending when the thread becomes free is the next batch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter, process_time

import numpy as np
import torch

from srl_ray.core.seeding import derive_seed
from srl_ray.core.types import BlockSpec
from srl_ray.models.config import PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.param_server.client import ParameterClient, Weights
from srl_ray.param_server.weights import install
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    Packer,
    PolicySignature,
    reply_packer,
    request_packer,
)
from srl_ray.streams.inline import act
from srl_ray.streams.remote import RequestHeader

_LATENCIES_KEPT = 2_000


@dataclass(frozen=True)
class PolicyWorkerSettings:
    """What a policy worker is told before it starts; see ActorSettings for the shared fields."""

    index: int
    epoch: int
    seed: int
    workers: PolicyWorkersConfig
    policy: PolicyConfig
    namespace: str
    policy_name: str
    num_threads: int = 1
    use_gpu: bool = False


@dataclass
class PolicyWorkerReport:
    """Counters since this worker's start.

    Attributes:
        rows: Rows answered.
        batches: Batches computed; rows / batches is the mean batch size.
        refused: Requests of actor workers that were replaced since.
        version: Policy version in use.
        seconds: Stage → seconds: compute, weights, pack; and processor: of all threads of the process.
        latency_s: Median and 99th percentile from arrival to answer, of the last requests.
    """

    index: int
    epoch: int
    rows: int = 0
    batches: int = 0
    refused: int = 0
    version: int = -1
    seconds: dict[str, float] = field(default_factory=dict)
    latency_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class _Waiting:
    header: RequestHeader
    packed: np.ndarray
    answer: asyncio.Future[tuple[np.ndarray, int, int]]
    arrived_s: float


class PolicyWorker:
    """Answers `infer` in batches with the newest weights.

    Lifecycle:   setup() → run() … stop() → run returns
    """

    def __init__(self, settings: PolicyWorkerSettings) -> None:
        self.settings = settings
        self._report = PolicyWorkerReport(settings.index, settings.epoch)
        self._seconds = {"compute": 0.0, "weights": 0.0, "pack": 0.0}
        self._latencies: deque[float] = deque(maxlen=_LATENCIES_KEPT)
        self._pending: deque[_Waiting] = deque()
        self._client_epochs: dict[int, int] = {}
        self._compute = ThreadPoolExecutor(1, "compute")
        self._stamp = (-1, -1)
        self._fresh: Weights | None = None
        self._stopped = False

    async def setup(self, spec: BlockSpec) -> PolicySignature:
        """Build the policy. Weights come with `run`."""
        self._arrived = asyncio.Event()
        self._installed = asyncio.Event()
        return await asyncio.get_running_loop().run_in_executor(self._compute, self._build, spec)

    def _build(self, spec: BlockSpec) -> PolicySignature:
        settings = self.settings
        torch.set_num_threads(settings.num_threads)
        self._device = torch.device("cuda") if settings.use_gpu else None
        self._policy = make_policy(settings.policy, spec.group.obs, spec.group.action, settings.seed)
        self._policy.eval()  # type: ignore[attr-defined]
        if self._device is not None:
            self._policy.to(self._device)  # type: ignore[attr-defined]
        self._generator = torch.Generator(self._device or "cpu")
        self._generator.manual_seed(derive_seed(settings.seed, "policy_worker", settings.index, settings.epoch))
        signature = PolicySignature(self._policy.action_spec.field, self._policy.state_size)
        self._request_packer: Packer = request_packer(spec.group.obs, signature.state_size)
        self._reply_packer: Packer = reply_packer(signature)
        return signature

    async def infer(self, header: RequestHeader, packed: np.ndarray) -> tuple[np.ndarray, int, int]:
        """Answer n rows.

        Returns:
            Packed reply (see `reply_packer`), policy version and trainer epoch that answered.
        """
        known = self._client_epochs.get(header.client, -1)
        if header.epoch < known:
            self._report.refused += 1
            return np.zeros(0, np.uint8), -1, -1
        self._client_epochs[header.client] = header.epoch
        waiting = _Waiting(header, packed, asyncio.get_running_loop().create_future(), perf_counter())
        self._pending.append(waiting)
        self._arrived.set()
        return await waiting.answer

    async def run(self) -> PolicyWorkerReport:
        """Answer until `stop`.

        consumes:      requests of infer(), versions of the parameter service
        produces:      replies
        waits for:     requests; a version at least as new as a request demands
        unblocked by:  infer(), stop()
        """
        pulling = asyncio.create_task(self._pull_weights())
        try:
            while not self._stopped:
                if not self._pending or (self._stamp == (-1, -1) and self._fresh is None):
                    if pulling.done():
                        pulling.result()
                    self._arrived.clear()
                    await _wait(self._arrived)
                    continue
                batch = self._next_batch()
                if batch:
                    await self._answer(batch)
                else:  # every pending request waits for newer weights
                    self._installed.clear()
                    await _wait(self._installed)
            return self.report_now()
        finally:
            pulling.cancel()
            for waiting in self._pending:
                waiting.answer.cancel()

    def _next_batch(self) -> list[_Waiting]:
        """Pending requests whose demands the newest weights meet, oldest first, up to max_batch_rows."""
        have = self._fresh.stamp if self._fresh is not None else self._stamp
        row_bytes = max(1, self._request_packer.row_bytes)
        batch: list[_Waiting] = []
        later: deque[_Waiting] = deque()
        rows = 0
        while self._pending:
            waiting = self._pending.popleft()
            size = len(waiting.packed) // row_bytes
            if waiting.header.least > have or (batch and rows + size > self.settings.workers.max_batch_rows):
                later.append(waiting)
            else:
                batch.append(waiting)
                rows += size
        self._pending = later
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        fresh, self._fresh = self._fresh, None
        requests = [waiting.packed for waiting in batch]
        replies, stamp = await asyncio.get_running_loop().run_in_executor(
            self._compute, self._compute_batch, requests, fresh
        )
        now = perf_counter()
        for waiting, reply in zip(batch, replies):
            self._latencies.append(now - waiting.arrived_s)
            if not waiting.answer.done():
                waiting.answer.set_result((reply, stamp[1], stamp[0]))

    def _compute_batch(
        self, packed: list[np.ndarray], fresh: Weights | None
    ) -> tuple[list[np.ndarray], tuple[int, int]]:
        """In the executor thread: install, unpack, act, pack."""
        begin = perf_counter()
        if fresh is not None:
            install(self._policy, fresh.flat)  # type: ignore[arg-type]
            self._stamp = fresh.stamp
        installed = perf_counter()
        requests = [self._unpack(one) for one in packed]
        unpacked = perf_counter()
        reply = act(self._policy, requests, self._generator, self._stamp, self._device)
        computed = perf_counter()
        replies, offset = [], 0
        for request in requests:
            rows = slice(offset, offset + request.num_rows)
            offset = rows.stop
            replies.append(self._pack(reply, rows))
        self._report.rows += offset
        self._report.batches += 1
        self._seconds["weights"] += installed - begin
        self._seconds["compute"] += computed - unpacked
        self._seconds["pack"] += unpacked - installed + perf_counter() - computed
        return replies, self._stamp

    def _unpack(self, packed: np.ndarray) -> InferenceRequest:
        fields = self._request_packer.unpack(packed)
        obs = {name[len("obs.") :]: array for name, array in fields.items() if name.startswith("obs.")}
        return InferenceRequest(obs, fields["state"], fields["on_reset"], fields["deterministic"])

    def _pack(self, reply: InferenceReply, rows: slice) -> np.ndarray:
        return self._reply_packer.pack(
            {
                "action": reply.action[rows],
                "log_prob": reply.log_prob[rows],
                "value": reply.value[rows],
                "state": reply.state[rows],
            }
        )

    async def _pull_weights(self) -> None:
        """Long-poll the parameter service; the newest version is installed before the next batch."""
        client = ParameterClient(self.settings.namespace, self.settings.policy_name)
        newest = (-1, -1)
        while not self._stopped:
            weights = await client.fetch_newer_async(newest, deadline_s=30.0)
            if weights is not None:
                self._fresh, newest = weights, weights.stamp
                self._installed.set()
                self._arrived.set()

    async def stop(self) -> None:
        """Have `run` return after the batch under way."""
        self._stopped = True
        self._arrived.set()

    async def report(self) -> PolicyWorkerReport:
        return self.report_now()

    def report_now(self) -> PolicyWorkerReport:
        report = PolicyWorkerReport(**vars(self._report))
        report.version = self._stamp[1]
        report.seconds = {**self._seconds, "processor": process_time()}
        if self._latencies:
            report.latency_s = (
                float(np.percentile(self._latencies, 50)),
                float(np.percentile(self._latencies, 99)),
            )
        return report


async def _wait(event: asyncio.Event, deadline_s: float = 0.5) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), deadline_s)
