"""Ray actors made from plain classes: the one place where workers meet Ray's options."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from srl_ray.core.errors import StreamError
from srl_ray.core.threads import told_threads
from srl_ray.placement.groups import Reservation
from srl_ray.runtime.logging import setup_logging

_LOG = logging.getLogger(__name__)

CONTROL = "control"
"""Concurrency group of the methods that must answer while `run()` is busy."""

CONTROL_METHODS = ("stop", "status", "rewire")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_ASYNC_CONCURRENCY = 10_000


@dataclass(frozen=True)
class WorkerOptions:
    """How a class becomes an actor.

    Attributes:
        control_methods: Methods of the control group, beside stop, status and rewire. Ignored by asyncio classes.
        groups: Further concurrency groups of a threaded class: name → (threads, methods).
        control_threads: Threads of the control group.
        env_vars: Further environment variables.
        max_concurrency: Of asyncio classes.
        name: Actor name for outside tools; the run's code passes handles.
    """

    control_methods: tuple[str, ...] = ()
    groups: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    control_threads: int = 4
    env_vars: Mapping[str, str] = field(default_factory=dict)
    max_concurrency: int = _ASYNC_CONCURRENCY
    name: str | None = None
    namespace: str | None = None


def start_worker(
    worker_class: type,
    *args: Any,
    role: str,
    index: int,
    reservation: Reservation,
    options: WorkerOptions | None = None,
    **kwargs: Any,
) -> Any:
    """Create one actor in its bundle and return its handle at once; nothing is awaited, nothing is raised.

    A class with async methods becomes an asyncio actor (one loop, no concurrency groups). Any other class gets a
    concurrency group `control` for `stop`, `status` and `rewire`; call them as usual, `handle.stop.remote()`.
    Workers without GPUs see no device. Ray never restarts them by itself.
    """
    options = options or WorkerOptions()
    placed = reservation.options(role, index)
    actor_options: dict[str, Any] = {
        **placed,
        "max_restarts": 0,
        "max_task_retries": 0,
        "runtime_env": {"env_vars": worker_env(placed["num_cpus"], placed["num_gpus"], options.env_vars)},
    }
    if options.name:
        actor_options |= {"name": options.name, "namespace": options.namespace}
    make_remote: Any = ray.remote
    if is_asyncio(worker_class):
        actor_options["max_concurrency"] = options.max_concurrency
        remote = make_remote(make_shell(worker_class, {}, role, index))
    else:
        members = {CONTROL: (options.control_threads, (*CONTROL_METHODS, *options.control_methods)), **options.groups}
        shell = make_shell(worker_class, {group: methods for group, (_, methods) in members.items()}, role, index)
        remote = make_remote(concurrency_groups={group: threads for group, (threads, _) in members.items()})(shell)
    return remote.options(**actor_options).remote(*args, **kwargs)


def worker_env(
    cpus: float, gpus: float, extra: Mapping[str, str] | None = None, user: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment of a worker: one math thread per whole CPU (at least one) unless the user set a number; no devices
    for workers without GPUs, because Ray leaves the driver's visible to them.

    Args:
        user: The driver's environment.
    """
    user = os.environ if user is None else user
    env = {name: user.get(name) or str(math_threads(cpus, user)) for name in _THREAD_VARIABLES}
    if gpus <= 0:
        env["CUDA_VISIBLE_DEVICES"] = ""
    return {**env, **(extra or {})}


def math_threads(cpus: float, user: Mapping[str, str] | None = None) -> int:
    """Math threads of a worker with this CPU share: what the user's OMP_NUM_THREADS says, else one per whole CPU."""
    return told_threads(os.environ if user is None else user) or max(1, int(cpus))


def is_asyncio(worker_class: type) -> bool:
    """Whether Ray will run the class in an asyncio loop."""
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for _, member in inspect.getmembers(worker_class, inspect.isfunction)
    )


def make_shell(worker_class: type, groups: Mapping[str, Iterable[str]], role: str, index: int) -> type:
    """A class of the same name and methods that makes the worker where Ray constructs it, and sets up its logging.

    Whoever is handed an actor's handle loads the actor's class. A shell names the worker's class and holds no reference
    to it, so that an actor worker with the handle of a trainer worker does not import torch.

    Args:
        groups: Concurrency group → its methods. Missing methods are left out.
        role: In the worker's log lines.
        index: The same.
    """
    group_of = {method: group for group, methods in groups.items() for method in methods}
    make = _maker(worker_class)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        setup_logging(role, index)
        self.worker = make()(*args, **kwargs)

    __init__.__signature__ = inspect.signature(worker_class.__init__)  # type: ignore[attr-defined, misc]
    members: dict[str, Any] = {
        "__module__": worker_class.__module__,
        "__doc__": worker_class.__doc__,
        "__init__": __init__,
        "__repr__": lambda self: repr(self.worker),
    }
    for name, function in inspect.getmembers(worker_class, inspect.isfunction):
        if not name.startswith("_"):
            forward = _forwarder(name, function)
            members[name] = ray.method(concurrency_group=group_of[name])(forward) if name in group_of else forward
    return type(worker_class.__name__, (), members)


def _maker(worker_class: type) -> Callable[[], type]:
    """Looks the project's own classes up by name; classes of notebooks and tests travel by value."""
    module, name = worker_class.__module__, worker_class.__qualname__
    if module.partition(".")[0] != __name__.partition(".")[0]:
        return lambda: worker_class
    return lambda: getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _forwarder(name: str, function: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.worker, name)(*args, **kwargs)

    async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.worker, name)(*args, **kwargs)

    forward: Any = call_async if inspect.iscoroutinefunction(function) else call
    forward.__name__ = name
    forward.__doc__ = function.__doc__
    forward.__signature__ = inspect.signature(function)
    return forward


def await_all(refs: Mapping[int, Any], *, role: str, what: str, deadline_s: float) -> dict[int, Any]:
    """Wait for one call per worker, for example all `setup()` calls; index → result.

    Blocks at most `deadline_s`; the first failure is raised at once, without waiting for the others.

    Raises:
        StreamError: not all answered in time; says which did not.
        Exception: what the worker raised, with its traceback (or RayActorError when it died).
    """
    until = time.monotonic() + deadline_s
    index_of = {ref: index for index, ref in refs.items()}
    results: dict[int, Any] = {}
    pending = list(index_of)
    while pending:
        ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, until - time.monotonic()))
        if not ready:
            late = ", ".join(str(index_of[ref]) for ref in pending[:10]) + (" …" if len(pending) > 10 else "")
            raise StreamError(
                f"{role} {late} did not finish {what} within {deadline_s:g} s. Raise cluster.start_timeout_s if this "
                "step is slow on purpose; otherwise see the workers' output in the run's logs folder."
            )
        results[index_of[ready[0]]] = ray.get(ready[0])
    return results


class WorkerGroup:
    """The workers of one role: creation, awaited set-up, replacement, end. Called by one thread, the supervisor's.

    Lifecycle:   start(i) → setup(...) → call run() yourself and keep its ref → stop_all() → kill_all()

    Example:
        actors = WorkerGroup("actor", ActorWorker, reservation)
        for i in range(8):
            actors.start(i, config.actors, i)
        actors.setup({i: (inference, samples[i]) for i in actors.handles}, deadline_s=180)
        running = {handle.run.remote(): i for i, handle in actors.handles.items()}
    """

    def __init__(
        self, role: str, worker_class: type, reservation: Reservation, options: WorkerOptions | None = None
    ) -> None:
        self.role = role
        self.handles: dict[int, Any] = {}
        self._class = worker_class
        self._reservation = reservation
        self._options = options

    def __len__(self) -> int:
        return len(self.handles)

    def start(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """Create (or replace) worker `index`; a worker of that index that still lives is killed first."""
        self.kill(index)
        self.handles[index] = start_worker(
            self._class,
            *args,
            role=self.role,
            index=index,
            reservation=self._reservation,
            options=self._options,
            **kwargs,
        )
        return self.handles[index]

    def setup(self, arguments: Mapping[int, Sequence[Any]], *, deadline_s: float) -> dict[int, Any]:
        """Call `setup(*arguments[i])` on the named workers and wait for all.

        Raises:
            StreamError: not finished in time.
            Exception: what a worker's setup raised, or RayActorError when its constructor did.
        """
        refs = {i: self.handles[i].setup.remote(*args) for i, args in arguments.items()}
        return await_all(refs, role=self.role, what="setup()", deadline_s=deadline_s)

    def call_all(self, method: str, *args: Any, deadline_s: float) -> dict[int, Any]:
        """Call a method on every worker and gather index → result; failures and late answers are left out, logged."""
        refs = {getattr(handle, method).remote(*args): i for i, handle in self.handles.items()}
        if not refs:
            return {}
        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=deadline_s)
        results: dict[int, Any] = {}
        for ref in ready:
            try:
                results[refs[ref]] = ray.get(ref)
            except Exception as error:  # a worker's own exception may be of any type; the caller asked the survivors
                _LOG.info("%s %d did not answer %s(): %s", self.role, refs[ref], method, _first_line(error))
        if late:
            _LOG.info("%s %s did not answer %s() in %g s", self.role, [refs[r] for r in late], method, deadline_s)
        return results

    def kill(self, index: int) -> None:
        """End a worker at once; an unknown index is no error."""
        handle = self.handles.pop(index, None)
        if handle is not None:
            with contextlib.suppress(Exception):  # it may be dead, or Ray disconnected
                ray.kill(handle)

    def kill_all(self) -> None:
        for index in list(self.handles):
            self.kill(index)


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}".split("\n")[0]
