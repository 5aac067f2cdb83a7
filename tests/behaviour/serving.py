"""A policy worker without a run around it, and questions for it."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from srl_ray.core.types import BlockSpec
from srl_ray.models.config import PolicyConfig
from srl_ray.models.factory import make_policy
from srl_ray.param_server.client import ParameterClient
from srl_ray.param_server.service import start_parameter_service
from srl_ray.param_server.weights import snapshot
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.policy.worker import PolicyWorker, PolicyWorkerSettings
from srl_ray.streams.inference import InferenceReply, InferenceRequest, PolicySignature
from srl_ray.streams.remote import Connector, RemoteInference


class Serving:
    """A policy worker with weights of version 0, and clients of it."""

    def __init__(self, spec: BlockSpec, policy: PolicyConfig, *, node_id: str = "", **workers: Any) -> None:
        """Args:
        node_id: Where the policy worker lives; empty: anywhere.
        workers: Settings of `policy_workers`.
        """
        self.spec = spec
        self._policy = make_policy(policy, spec.group.obs, spec.group.action, 5)
        namespace = uuid.uuid4().hex
        self._service = start_parameter_service(namespace)
        self._parameters = ParameterClient(namespace, "main")
        settings = PolicyWorkerSettings(0, 0, 1, PolicyWorkersConfig(count=1, **workers), policy, namespace, "main")
        make_remote: Any = ray.remote(PolicyWorker)
        options: dict[str, Any] = {"num_cpus": 0.5, "max_concurrency": 100}
        if node_id:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self.handle = make_remote.options(**options).remote(settings)
        self.signature: PolicySignature = ray.get(self.handle.setup.remote(spec), timeout=60)
        self.running = self.handle.run.remote()
        self.pid: int = ray.get(self.handle.__ray_call__.remote(lambda worker: os.getpid()), timeout=60)
        self.publish(0)

    def publish(self, version: int) -> None:
        self._parameters.publish(snapshot(self._policy), epoch=0, version=version)  # type: ignore[arg-type]

    def client(self, transport: str, index: int = 0, slots: int = 1) -> RemoteInference:
        capacity = 2 * self.spec.num_lanes
        how = {"slots": slots, "capacity": capacity, "transport": transport}
        connector = Connector(index, 0, self.spec.group.obs, self.signature, **how)
        return RemoteInference(index, 0, connector, self.handle, self.signature)

    def report(self, rows: int = 0) -> Any:
        """The report, as soon as it counts this many rows: a batch is counted after its answers were sent."""
        until = time.monotonic() + 10
        while True:
            report = ray.get(self.handle.report.remote(), timeout=10)
            if report.rows >= rows or time.monotonic() > until:
                return report

    def end(self) -> None:
        ray.get(self.handle.stop.remote(), timeout=10)
        ray.get(self.running, timeout=10)
        for handle in (self.handle, self._service):
            ray.kill(handle)


def request(serving: Serving, rows: int, seed: int, *, deterministic: bool = True) -> InferenceRequest:
    rng = np.random.default_rng(seed)
    obs = {
        name: (rng.random((rows, *spec.shape)) * 4).astype(spec.dtype) for name, spec in serving.spec.group.obs.items()
    }
    state = rng.random((rows, serving.signature.state_size)).astype(np.float32)
    return InferenceRequest(obs, state, rng.random(rows) < 0.2, np.full(rows, deterministic))


def ask(client: RemoteInference, asked: InferenceRequest, slot: int = 0) -> InferenceReply:
    client.post(slot, asked)
    reply = client.take(slot, 30.0)
    assert reply is not None
    return reply
