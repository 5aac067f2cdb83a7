"""A whole run on one page: reserve → service → trainers → policy workers → actor workers → supervise → tear down.

The driver builds everything here, hands out handles, watches the workers' `run()` refs, keeps the counters and the run
directory, and takes everything down again in the opposite order. What to do about a failure is decided by
`runtime.failure_policy`; what is replaced and rewired is done by `Crew`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

import srl_ray
from srl_ray.config import ExperimentConfig, to_mapping, to_yaml
from srl_ray.core.errors import EnvironmentFault, SrlError
from srl_ray.placement.groups import cluster_nodes, plan_when_possible, reserve
from srl_ray.placement.plan import RoleRequest, make_plan
from srl_ray.runtime.checkpoint import Checkpoint
from srl_ray.runtime.cluster import connect, expected_local_nodes
from srl_ray.runtime.failure_policy import FailurePolicy, Raise
from srl_ray.runtime.logging import setup_logging
from srl_ray.runtime.metrics import MetricsWriter
from srl_ray.runtime.run_directory import RunDirectory, find_checkpoint, open_run_directory
from srl_ray.runtime.signals import StopSignal, stop_on_signals
from srl_ray.runtime.tally import Tally

if TYPE_CHECKING:
    from srl_ray.crew import Crew

_LOG = logging.getLogger("srl_ray")
_POLL_S = 0.5
_STALL_S = 60.0
_FLUSH_S = 30.0
_FLUSH_AFTER_SIGNAL_S = 2.0


@dataclass
class RunResult:
    """What came of a run.

    Attributes:
        exit_status: 0: a goal of `stop` was reached; 130 / 143: interrupted, checkpoint written.
        reason: Why it ended, in words.
        run_dir: Where everything lies.
        checkpoint: The last checkpoint.
        record: The last metrics record.
        outputs: Name → path of pictures and videos.
    """

    exit_status: int
    reason: str
    run_dir: Path
    checkpoint: Path | None
    env_steps: int
    policy_version: int
    seconds: float
    record: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Path] = field(default_factory=dict)


def run(config: ExperimentConfig, *, overrides: Sequence[str] = ()) -> RunResult:
    """Train until a goal of `config.stop` is reached or a signal comes.

    Args:
        overrides: What the user typed, for the log.

    Raises:
        SrlError: something failed for good; its text says what and what to do. Nothing of the run is left running.
    """
    directory, checkpoint = open_run_directory(config.run, experiment=config.name)
    run_id = f"srl_ray-{directory.path.name}-{uuid.uuid4().hex[:8]}"
    setup_logging("driver", file=directory.logs / "driver.log")
    directory.write_config(to_yaml(config))
    _LOG.info("run directory %s", directory.path)
    if config.policy.start_from and checkpoint is None:
        _LOG.info("beginning with the weights of %s", find_checkpoint(config.policy.start_from))
    # Brings torch along, which takes a second of the time that Ray needs to start anyway.
    threading.Thread(target=importlib.import_module, args=("srl_ray.crew",), name="import", daemon=True).start()
    with (
        connect(config.cluster, namespace=run_id, keep_logs_in=directory.logs) as cluster,
        stop_on_signals() as signal,
    ):
        _LOG.info("using %s", cluster)
        plan = plan_when_possible(role_requests(config), config.placement, wait_s=0.0)
        _LOG.info("placement:\n%s", plan.explain())
        with reserve(plan, timeout_s=config.cluster.placement_timeout_s) as reservation:
            from srl_ray.crew import Crew

            crew = Crew(config, reservation, run_id, directory.path)
            flush_s = 0.0
            try:
                result = _Supervision(config, crew, directory, checkpoint, signal).run()
                flush_s = _FLUSH_AFTER_SIGNAL_S if signal.is_set else _FLUSH_S
            finally:
                crew.end(flush_s=flush_s)
    if result.exit_status == 0:
        result.outputs |= make_pictures(config, result)
    _say_goodbye(result, overrides)
    return result


def plan_only(config: ExperimentConfig) -> str:
    """The placement table for the cluster that the run would use; starts nothing."""
    nodes = expected_local_nodes(config.cluster)
    if nodes is not None:
        plan = make_plan(role_requests(config), nodes, config.placement)
        return f"a local Ray with {nodes[0].cpus:g} CPU and {nodes[0].gpus:g} GPU (not started)\n{plan.explain()}"
    with connect(config.cluster) as cluster:
        plan = make_plan(role_requests(config), cluster_nodes(), config.placement)
        return f"{cluster}\n{plan.explain()}"


def role_requests(config: ExperimentConfig) -> list[RoleRequest]:
    """Who asks the cluster for what."""
    placement = config.placement
    roles = (
        ("trainer", config.trainers, placement.trainers_labels),
        ("policy_worker", config.policy_workers, placement.trainers_labels),
        ("actor", config.actors, placement.actors_labels),
    )
    return [
        RoleRequest(role, part.count, cpus=part.cpus, gpus=part.gpus, labels=labels) for role, part, labels in roles
    ]


class _Supervision:
    """The driver's loop: watch, count, log, save, until the end."""

    def __init__(
        self,
        config: ExperimentConfig,
        crew: Crew,
        directory: RunDirectory,
        checkpoint: Checkpoint | None,
        signal: StopSignal,
    ) -> None:
        self.config = config
        self.crew = crew
        self.directory = directory
        self.signal = signal
        self.resumed = checkpoint
        self.policy = FailurePolicy(
            config.failure, time.monotonic, restart_environment_faults=config.env.on_error == "restart"
        )
        self.repairs = ThreadPoolExecutor(1, "repair")
        self.repairing: dict[tuple[str, int], Future[None]] = {}
        self.last_checkpoint: Path | None = None
        self.last_record: dict[str, Any] = {}
        self.progress_seen: tuple[int, float] = (0, time.monotonic())

    def run(self) -> RunResult:
        """Start everybody, supervise, stop everybody."""
        from srl_ray.crew import spaces_of

        crew = self.crew
        spec = crew.start(self.resumed)
        group = spec.group
        team_of = {agent: group.team_of(slot) for slot, agent in enumerate(group.agent_ids)}
        self.tally = Tally(team_of=team_of, now=time.monotonic)
        self.spaces = spaces_of(spec)
        if self.resumed is not None:
            self.tally.rewind(self.resumed.facts)
            _LOG.info("resumed from %s at %d env steps", self.resumed.path, self.tally.counts["env_steps"])
            self._send_progress()
        self.start_s = time.monotonic()
        with self._writer(None if self.resumed is None else self.tally.counts["env_steps"]) as self.metrics:
            try:
                if self.resumed is None:
                    self._save()
                crew.begin()
                reason = self._supervise()
                status = self.signal.exit_status
                if status:
                    self._save()  # first of all: a stopped job is killed soon after
                crew.stop()
                for _ in range(2):  # the first answers may be to questions from before the end
                    self._poll(deadline_s=2.0)
                if not status:
                    self._save()
                self._log_interval()
            finally:
                self.repairs.shutdown(wait=False, cancel_futures=True)
                self.metrics.close()
        return RunResult(
            status,
            reason,
            self.directory.path,
            self.last_checkpoint,
            self.tally.counts["env_steps"],
            self.tally.version,
            time.monotonic() - self.start_s,
            self.last_record,
        )

    def _writer(self, resumed_env_steps: int | None) -> MetricsWriter:
        return MetricsWriter(
            self.directory.path,
            tensorboard=self.config.run.tensorboard,
            resumed_env_steps=resumed_env_steps,
            console=_LOG.info,
        )

    def _supervise(self) -> str:
        """Returns why the run is over."""
        run = self.config.run
        next_poll_s = next_log_s = time.monotonic()
        next_log_s += run.log_interval_s
        next_save_s = time.monotonic() + run.checkpoint_interval_s
        first_version, has_begun = self.tally.version, False
        while True:
            if self.signal.is_set:
                return f"{self.signal.name} received"
            for role, index, error in self.crew.failures(timeout_s=0.05 if run.log_interval_s == 0 else 0.2):
                self._handle(role, index, error)
            self._finish_repairs()
            now = time.monotonic()
            if now >= next_poll_s:
                self._poll()
                if not has_begun and self.tally.version > first_version:
                    has_begun, next_log_s = True, now  # the first update is news as soon as it is there
                next_poll_s = now + (_POLL_S if run.log_interval_s and has_begun else 0.05)
                self._check_stall()
            if run.log_interval_s == 0:
                while self.tally.updates_pending:
                    self._log_interval(only_update=0)
            elif now >= next_log_s:
                self._log_interval()
                next_log_s = max(next_log_s + run.log_interval_s, now)
            if now >= next_save_s:
                self._save()
                next_save_s = now + run.checkpoint_interval_s
            reason = self._goal_reached(now - self.start_s)
            if reason:
                return reason

    def _goal_reached(self, seconds: float) -> str:
        stop, tally = self.config.stop, self.tally
        if stop.env_steps is not None and tally.counts["env_steps"] >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps} reached"
        if stop.seconds is not None and seconds >= stop.seconds:
            return f"stop.seconds={stop.seconds:g} reached"
        recent = tally.recent_returns
        if stop.episode_return is not None and len(recent) == recent.maxlen:
            mean = sum(recent) / len(recent)
            if mean >= stop.episode_return:
                return f"stop.episode_return={stop.episode_return:g} reached (mean of {len(recent)}: {mean:.1f})"
        return ""

    # ---------------------------------------------------------------------------------------------------- observing

    def _poll(self, deadline_s: float = 0.1) -> None:
        """Collect the reports that are there; those who are slow to answer come with the next poll."""
        reports = self.crew.reports(deadline_s)
        episodes: list[dict[str, Any]] = []
        for report in reports.actors:
            episodes += self.tally.add_actor(report)
            self._check_step_time(report)
        for trainer in reports.trainers:
            self.tally.add_trainer(trainer)
        for policy_worker in reports.policy_workers:
            self.tally.add_policy_worker(policy_worker)
        self.tally.restarts = dict(self.policy.restarts_total)
        if episodes:
            self.metrics.write_episodes(episodes, env_steps=self.tally.counts["env_steps"])
        self._send_progress()

    def _send_progress(self) -> None:
        """To the trainer workers, whose schedules need it."""
        total = self.config.stop.env_steps
        if total:
            self.crew.set_progress(min(1.0, self.tally.counts["env_steps"] / total))

    def _log_interval(self, only_update: int | None = None) -> None:
        record = self.tally.record(only_update=only_update)
        allowed = self.config.chunks_under_way
        if allowed and "buffer/waiting" in record:
            record["buffer/fill"] = min(1.0, record["buffer/waiting"] / allowed)
        self.last_record = self.metrics.write(record)

    def _check_step_time(self, report: Any) -> None:
        """An environment call that takes longer than env.step_timeout_s is a fault of its worker."""
        limit = self.config.env.step_timeout_s
        if report.step_started_s and time.time() - report.step_started_s > limit:
            fault = EnvironmentFault(
                self.config.env.id or "factory",
                f"reset or step of actor worker {report.index} has taken more than env.step_timeout_s={limit:g} s",
            )
            self._handle("actor", report.index, fault)

    def _check_stall(self) -> None:
        """Say so, once a minute, when nothing gets on."""
        progress = self.tally.counts["env_steps"] + self.tally.version
        now = time.monotonic()
        if progress != self.progress_seen[0]:
            self.progress_seen = (progress, now)
        elif now - self.progress_seen[1] > _STALL_S:
            self.progress_seen = (progress, now)
            _LOG.warning("no progress for %.0f s: %s", _STALL_S, self.crew.whereabouts())

    # ----------------------------------------------------------------------------------------------------- recovering

    def _handle(self, role: str, index: int, error: BaseException) -> None:
        """Decide about a failed worker and begin its replacement."""
        key = (role, 0 if role == "trainer" else index)
        if key in self.repairing:
            return
        decision = self.policy.decide(role, index, error)
        if isinstance(decision, Raise):
            raise decision.error
        _LOG.warning("%s %d failed (%s); replacing it in %.1f s", role, index, _first_line(error), decision.delay_s)
        checkpoint = self._rewind() if role == "trainer" else None
        self.repairing[key] = self.repairs.submit(self.crew.replace, role, index, decision.delay_s, checkpoint)

    def _rewind(self) -> Path:
        """The trainer group starts again from the newest checkpoint, and the counters with it."""
        newest = self.directory.newest_checkpoint()
        assert newest is not None, "one is written before training begins"
        self.tally.rewind(newest.facts)
        self.metrics.close()
        self.metrics = self._writer(self.tally.counts["env_steps"])
        _LOG.warning(
            "trainer group restarts from %s: back to %d env steps", newest.path, self.tally.counts["env_steps"]
        )
        return newest.path

    def _finish_repairs(self) -> None:
        for (role, index), future in list(self.repairing.items()):
            if future.done():
                del self.repairing[role, index]
                error = future.exception()
                if error is None:
                    _LOG.info("%s %d is back", role, index)
                else:
                    self._handle(role, index, error)

    def _save(self) -> None:
        """Write a checkpoint; a failure is said and training goes on with the earlier ones."""
        if ("trainer", 0) in self.repairing:
            return
        facts = {
            **self.tally.facts(),
            "experiment": self.config.name,
            "srl_ray": srl_ray.__version__,
            "spaces": self.spaces,
            "config": to_mapping(self.config),
        }
        target = self.directory.checkpoint_path(self.tally.counts["env_steps"])
        try:
            self.last_checkpoint = Path(self.crew.save(target, facts))
            self.directory.prune_checkpoints(self.config.run.keep_checkpoints)
        except (SrlError, ray.exceptions.RayError) as error:
            _LOG.warning("no checkpoint this time: %s", _first_line(error))


# --------------------------------------------------------------------------------------------------------- afterwards


def make_pictures(config: ExperimentConfig, result: RunResult) -> dict[str, Path]:
    """Curves and a video of the trained policy; what cannot be made is said and left out."""
    outputs: dict[str, Path] = {}
    if config.run.plots:
        from srl_ray.plotting.curves import draw_curves

        with _tolerated("no curves"):
            outputs["curves"] = draw_curves(result.run_dir)
    if config.run.video and config.env.id == "hide_and_seek" and result.checkpoint is not None:
        with _tolerated("no video"):
            target = result.run_dir / "videos" / "episode.mp4"
            target.parent.mkdir(exist_ok=True)
            command = [sys.executable, "-m", "srl_ray.render", f"checkpoint={result.checkpoint}", f"out={target}"]
            subprocess.run(command, check=True, timeout=300, capture_output=True)
            outputs["video"] = target
    return outputs


@contextlib.contextmanager
def _tolerated(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a picture is never a reason to fail a finished run
        _LOG.warning("%s: %s", what, _first_line(error))


def _say_goodbye(result: RunResult, overrides: Sequence[str]) -> None:
    """Where everything is, and how to go on: the same command from the last checkpoint, with a later goal."""
    kept = [o for o in overrides if not o.lstrip("+").startswith(("run.dir=", "run.resume="))]
    lines = [
        f"{result.reason}: {result.env_steps:,} env steps, policy version {result.policy_version}, "
        f"{result.seconds:.0f} s",
        f"  checkpoint  {result.checkpoint}",
        *(f"  {name:<11} {path}" for name, path in result.outputs.items()),
        f"  go on       python -m srl_ray.train {shlex.join([*kept, f'run.resume={result.run_dir}'])}",
        f"  look        python -m srl_ray.evaluate checkpoint={result.checkpoint}",
        f"              tensorboard --logdir {result.run_dir}",
    ]
    _LOG.info("\n".join(lines))


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}".strip().split("\n")[0]
