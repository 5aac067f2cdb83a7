"""The policy worker: joins the requests of many actor workers into batches. An asyncio actor with a serving thread.

The serving thread holds the policy and waits at one place for everything: requests in shared memory, requests that came
as Ray calls, newer weights, batches that a device has finished. Requests are received while a batch is computed, and
whatever is pending then is the next batch; on a device that works by itself it is launched before the last one's answer
is there. The event loop takes Ray calls in, pulls weights and answers the driver.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic, perf_counter, process_time

import numpy as np
import ray
import torch

from srl_ray.core.seeding import derive_seed
from srl_ray.core.types import BlockSpec
from srl_ray.models.compilation import compile_inference, graph_inference
from srl_ray.models.config import PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.param_server.client import ParameterClient, Weights
from srl_ray.param_server.weights import install
from srl_ray.policy.batcher import IDLE_S, Batcher, Waiting
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.policy.launch import make_launch
from srl_ray.policy.staging import Staging
from srl_ray.streams.inference import (
    InferenceReply,
    InferenceRequest,
    PolicySignature,
    RequestHeader,
    reply_arrays,
    reply_packer,
    request_of,
    request_packer,
)
from srl_ray.streams.inline import act_on_tensors
from srl_ray.streams.remote import Endpoint
from srl_ray.streams.shared_memory import SharedMemoryPort

_LATENCIES_KEPT = 2_000
_STAGES = ("wait", "gather", "weights", "compute", "reply")

PackedReply = tuple[np.ndarray, int, int]


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
        shared_memory_clients: Actor workers connected through shared memory.
        seconds: Stage → seconds of the serving thread: wait (for requests), gather (into the staging buffers), weights,
            compute (with several batches in flight: launch), reply; and processor: of all threads of the process.
        latency_s: Median and 99th percentile from arrival to answer, of the last requests.
        queue_s: The same from arrival to the beginning of their batch.
    """

    index: int
    epoch: int
    rows: int = 0
    batches: int = 0
    refused: int = 0
    version: int = -1
    shared_memory_clients: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    latency_s: tuple[float, float] = (0.0, 0.0)
    queue_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class _RayRequest:
    """A request that came as a Ray call."""

    worker: PolicyWorker
    header: RequestHeader
    packed: np.ndarray
    future: asyncio.Future[PackedReply]
    arrived_s: float

    @property
    def num_rows(self) -> int:
        return len(self.packed) // self.worker.request_packer.row_bytes

    @property
    def least(self) -> tuple[int, int]:
        return self.header.least

    @property
    def is_wanted(self) -> bool:
        return not self.future.done()

    def read(self) -> InferenceRequest:
        return request_of(self.worker.request_packer.unpack(self.packed))

    def answer(self, reply: InferenceReply) -> None:
        self.settle((self.worker.reply_packer.pack(reply_arrays(reply)), reply.version, reply.epoch))

    def refuse(self) -> None:
        self.settle((np.zeros(0, np.uint8), -1, -1))

    def settle(self, answer: PackedReply) -> None:
        self.future.get_loop().call_soon_threadsafe(_settle, self.future, answer)


@dataclass(eq=False)
class _Flight:
    """A batch that a device works on, and the buffers that it reads meanwhile."""

    batch: list[Waiting]
    begun_s: float
    staging: Staging
    reply: Future[InferenceReply]


def _settle(future: asyncio.Future[PackedReply], answer: PackedReply) -> None:
    if not future.done():
        future.set_result(answer)


class PolicyWorker:
    """Answers in batches with the newest weights.

    Lifecycle:   setup() → run() … stop() → run returns
    """

    def __init__(self, settings: PolicyWorkerSettings) -> None:
        self.settings = settings
        self._report = PolicyWorkerReport(settings.index, settings.epoch)
        self._seconds = dict.fromkeys(_STAGES, 0.0)
        self._latency_s = np.zeros(_LATENCIES_KEPT)
        self._queue_s = np.zeros(_LATENCIES_KEPT)
        self._num_answered = 0
        self._called: deque[_RayRequest] = deque()
        self._fresh: deque[Weights] = deque(maxlen=1)
        self._flights: deque[_Flight] = deque()
        self._client_epochs: dict[int, int] = {}
        self._serving = ThreadPoolExecutor(1, "serving")
        self._stamp: tuple[int, int] | None = None
        self._stopped = False

    # ----------------------------------------------------------------------------------------------------- event loop

    async def setup(self, spec: BlockSpec) -> PolicySignature:
        """Build the policy and open the port. Weights come with `run`."""
        return await asyncio.get_running_loop().run_in_executor(self._serving, self._build, spec)

    async def endpoint(self) -> Endpoint:
        """Where actor workers of this node can share memory with this worker."""
        return Endpoint(ray.get_runtime_context().get_node_id(), self._port.address)

    async def infer(self, header: RequestHeader, packed: np.ndarray) -> PackedReply:
        """Answer n rows.

        Returns:
            Packed reply (see `reply_packer`), policy version and trainer epoch that answered.
        """
        future: asyncio.Future[PackedReply] = asyncio.get_running_loop().create_future()
        self._called.append(_RayRequest(self, header, packed, future, monotonic()))
        self._port.wake()
        return await future

    async def run(self) -> PolicyWorkerReport:
        """Answer until `stop`. Raises what the policy raised, or that the parameter service cannot be reached.

        consumes:      requests of infer() and of the port, versions of the parameter service
        produces:      replies
        waits for:     the serving thread
        unblocked by:  stop()
        """
        serving = asyncio.get_running_loop().run_in_executor(self._serving, self._serve)
        pulling = asyncio.create_task(self._pull_weights())
        try:
            await asyncio.wait({serving, pulling}, return_when=asyncio.FIRST_COMPLETED)
            if pulling.done():
                pulling.result()
            await serving
            return self.report_now()
        finally:
            pulling.cancel()
            await self.stop()
            await asyncio.wait({serving})
            self._port.close()

    async def _pull_weights(self) -> None:
        """Long-poll the parameter service; the newest version is installed before the next batch."""
        client = ParameterClient(self.settings.namespace, self.settings.policy_name)
        newest = (-1, -1)
        while not self._stopped:
            weights = await client.fetch_newer_async(newest, deadline_s=30.0)
            if weights is not None:
                self._fresh.append(weights)
                newest = weights.stamp
                self._port.wake()

    async def stop(self) -> None:
        """Have `run` return after the batch under way."""
        self._stopped = True
        self._port.wake()

    async def report(self) -> PolicyWorkerReport:
        return self.report_now()

    def report_now(self) -> PolicyWorkerReport:
        report = PolicyWorkerReport(**vars(self._report))
        report.version = self._stamp[1] if self._stamp is not None else -1
        report.seconds = {**self._seconds, "processor": process_time()}
        kept = min(self._num_answered, _LATENCIES_KEPT)
        if kept:
            report.latency_s, report.queue_s = (
                (float(np.percentile(taken[:kept], 50)), float(np.percentile(taken[:kept], 99)))
                for taken in (self._latency_s, self._queue_s)
            )
        return report

    # ------------------------------------------------------------------------------------------------- serving thread

    def _build(self, spec: BlockSpec) -> PolicySignature:
        settings = self.settings
        torch.set_num_threads(settings.num_threads)
        device = torch.device("cuda") if settings.use_gpu else None
        self._policy = make_policy(settings.policy, spec.group.obs, spec.group.action, settings.seed)
        self._policy.eval()  # type: ignore[attr-defined]
        if device is not None:
            self._policy.to(device)  # type: ignore[attr-defined]
        if settings.policy.is_inference_compiled:
            compile_inference(self._policy, spec.group.obs)
        if settings.policy.cuda_graphs:
            graph_inference(self._policy)
        self._generator = torch.Generator(device or "cpu")
        self._generator.manual_seed(derive_seed(settings.seed, "policy_worker", settings.index, settings.epoch))
        signature = PolicySignature(self._policy.action_spec.field, self._policy.state_size)
        self.request_packer = request_packer(spec.group.obs, signature.state_size)
        self.reply_packer = reply_packer(signature)
        launch = make_launch(self._policy, device)
        in_flight = 1 if launch is None else settings.workers.batches_in_flight or 2
        self._launch = launch if in_flight > 1 else None
        self._staging = [Staging(spec.group.obs, signature.state_size, device) for _ in range(in_flight)]
        self._port = SharedMemoryPort(spec.group.obs, signature, self._admit)
        workers = settings.workers
        self._batcher = Batcher(
            max_rows=workers.max_batch_rows, min_rows=workers.min_batch_rows, max_wait_s=workers.max_wait_s
        )
        return signature

    def _admit(self, client: int, epoch: int) -> bool:
        """Whether an actor worker of this epoch is the newest that is known."""
        if epoch < self._client_epochs.get(client, -1):
            self._report.refused += 1
            return False
        self._client_epochs[client] = epoch
        return True

    def _serve(self) -> None:
        wait_s = 0.0
        while not self._stopped:
            begin = perf_counter()
            for request in self._port.poll(wait_s):
                self._batcher.add(request)
            self._seconds["wait"] += perf_counter() - begin
            while self._called:
                call = self._called.popleft()
                if self._admit(call.header.client, call.header.epoch):
                    self._batcher.add(call)
                else:
                    call.refuse()
            self._report.shared_memory_clients = self._port.num_connections
            while (landed := self._landed()) is not None:
                self._reply(landed.batch, landed.begun_s, landed.reply.result())
            if not self._staging:  # all are in flight; one that lands wakes the port
                wait_s = IDLE_S
                continue
            batch, wait_s = self._batcher.next(self._newest(), monotonic())
            if batch:
                self._answer(batch)
        for flight in self._flights:
            self._reply(flight.batch, flight.begun_s, flight.reply.result())

    def _landed(self) -> _Flight | None:
        """A batch that the device has finished; its buffers are free again."""
        for flight in self._flights:
            if flight.reply.done():
                self._flights.remove(flight)
                self._staging.append(flight.staging)
                return flight
        return None

    def _newest(self) -> tuple[int, int] | None:
        """(epoch, version) of the newest weights at hand, installed or not."""
        return self._fresh[0].stamp if self._fresh else self._stamp

    def _answer(self, batch: list[Waiting]) -> None:
        """Install newer weights, join, act, reply; or have the device begin and reply when it is through."""
        begun_s, begin = monotonic(), perf_counter()
        if self._fresh:
            fresh = self._fresh.popleft()
            install(self._policy, fresh.flat)  # type: ignore[arg-type]
            self._stamp = fresh.stamp
        assert self._stamp is not None
        installed = perf_counter()
        staging = self._staging[-1]
        tensors = staging.load([request.read() for request in batch])
        gathered = perf_counter()
        reply = None
        if self._launch is None or not len(tensors[1]):  # none to compute
            reply = act_on_tensors(self._policy, *tensors, self._generator, self._stamp)
        else:
            future = self._launch(*tensors, self._generator, stamp=self._stamp)
            self._flights.append(_Flight(batch, begun_s, self._staging.pop(), future))
            future.add_done_callback(lambda _: self._port.wake())
        computed = perf_counter()
        for stage, seconds in (
            ("weights", installed - begin),
            ("gather", gathered - installed),
            ("compute", computed - gathered),
        ):
            self._seconds[stage] += seconds
        if reply is not None:
            self._reply(batch, begun_s, reply)

    def _reply(self, batch: list[Waiting], begun_s: float, reply: InferenceReply) -> None:
        begin, rows = perf_counter(), 0
        for request in batch:
            request.answer(reply.rows(slice(rows, rows + request.num_rows)))
            rows += request.num_rows
            place = self._num_answered % _LATENCIES_KEPT
            self._queue_s[place], self._latency_s[place] = begun_s - request.arrived_s, monotonic() - request.arrived_s
            self._num_answered += 1
        self._report.rows += rows
        self._report.batches += 1
        self._seconds["reply"] += perf_counter() - begin
