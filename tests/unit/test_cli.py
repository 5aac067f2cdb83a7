"""The training command: what it prints, what it returns, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from srl_ray import train
from srl_ray.composition import choices
from srl_ray.config import ExperimentConfig, from_yaml, to_yaml
from srl_ray.core.errors import CheckpointError, ConfigError, PlacementError, WorkerFailure

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


class Recorder(types.ModuleType):
    """Stands for `srl_ray.experiment`; keeps what it was asked to run."""

    def __init__(self) -> None:
        super().__init__("srl_ray.experiment")
        self.ran: list[tuple[ExperimentConfig, list[str]]] = []
        self.outcome: int | Exception = 0

    def run(self, config: ExperimentConfig, *, overrides: Sequence[str] = ()) -> Any:
        self.ran.append((config, list(overrides)))
        assert from_yaml(to_yaml(config)) == config  # a run reads configurations too: those of checkpoints
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return types.SimpleNamespace(exit_status=self.outcome)

    def plan_only(self, config: ExperimentConfig) -> str:
        return f"plan of {config.name}"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    import srl_ray

    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "srl_ray.experiment", recorder)
    monkeypatch.setattr(srl_ray, "experiment", recorder, raising=False)
    return recorder


def command(*argv: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "srl_ray.train", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )


# --- a run -----------------------------------------------------------------------------------------------------------


def test_configuration_and_overrides_reach_the_experiment(experiment: Recorder) -> None:
    assert train.main(["+experiment=cartpole", "actors.count=2"]) == 0

    [(config, overrides)] = experiment.ran
    assert (config.name, config.actors.count) == ("cartpole", 2)
    assert overrides == ["+experiment=cartpole", "actors.count=2"]


@pytest.mark.parametrize("status", [0, 1, 130, 143])
def test_exit_status_is_that_of_the_run(experiment: Recorder, status: int) -> None:
    experiment.outcome = status
    assert train.main(["experiment=cartpole"]) == status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("env.id=CartPol-v1: no such environment"), 2),
        (PlacementError("asked for 64 CPUs, the largest node has 2"), 1),
        (CheckpointError("runs/x", "is damaged"), 1),
        (WorkerFailure("actor worker", 3, 4, "ValueError: sim diverged"), 1),
    ],
)
def test_known_errors_are_one_message_without_traceback(
    experiment: Recorder, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    experiment.outcome = error

    assert train.main(["experiment=cartpole"]) == status

    printed = capsys.readouterr().err
    assert str(error) in printed
    assert "Traceback" not in printed


def test_unforeseen_errors_keep_their_traceback(experiment: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.outcome = RuntimeError("a bug")

    assert train.main(["experiment=cartpole"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_before_the_run_is_130(experiment: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    experiment.outcome = KeyboardInterrupt()  # type: ignore[assignment]

    assert train.main(["experiment=cartpole"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_plan_only_prints_and_runs_nothing(experiment: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["experiment=cartpole", "plan_only=true"]) == 0
    assert capsys.readouterr().out == "plan of cartpole\n"
    assert not experiment.ran

    assert train.main(["experiment=cartpole", "plan_only=maybe"]) == 2
    assert train.main(["experiment=cartpole", "plan_only=false"]) == 0
    assert len(experiment.ran) == 1


def test_notes_are_printed_before_the_run(experiment: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    train.main(["experiment=cartpole", "policy_workers.gpus=0.5"])
    assert "note: policy_workers.gpus=0.5 has no effect" in capsys.readouterr().err


def test_cfg_prints_the_tree(experiment: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["experiment=cartpole", "actors.count=5", "--cfg", "job"]) == 0
    assert from_yaml(capsys.readouterr().out).actors.count == 5
    assert not experiment.ran


def test_help_lists_experiments_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in choices("experiment"))
    assert "layout=" in text
    assert "plan_only=true" in text


def test_unknown_options_are_configuration_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["--frobnicate"]) == 2
    assert "--frobnicate" in capsys.readouterr().err
    assert train.main(["--config-dir"]) == 2
    assert train.main(["--config-dir", "/no/such/dir", "experiment=cartpole"]) == 2


# --- sweeps ----------------------------------------------------------------------------------------------------------


def test_multirun_runs_every_combination_in_a_directory_of_its_own(
    experiment: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = list(sys.argv)

    assert train.main(["+experiment=cartpole,cartpole_lstm", "run.seed=1,2", "env.kwargs.a=3", "--multirun"]) == 0

    ran = [(config.name, config.run.seed, config.env.kwargs) for config, _ in experiment.ran]
    assert ran == [(name, seed, {"a": 3}) for name in ("cartpole", "cartpole_lstm") for seed in (1, 2)]
    directories = [Path(config.run.dir) for config, _ in experiment.ran]
    assert len(set(directories)) == 4
    assert all(list(directory.iterdir()) == [] for directory in directories if directory.exists())
    assert sys.argv == argv


def test_multirun_numbers_the_runs_below_a_given_directory(
    experiment: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert train.main(["experiment=cartpole", "run.seed=1,2", "run.dir=my runs", "-m"]) == 0
    assert [config.run.dir for config, _ in experiment.ran] == [str(tmp_path / "my runs" / n) for n in "01"]


@pytest.mark.parametrize("status", [130, 143])
def test_signal_ends_a_multirun(
    experiment: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment.outcome = status

    assert train.main(["experiment=cartpole", "run.seed=1,2,3", "-m"]) == status
    assert len(experiment.ran) == 1


def test_multirun_reports_the_worst_status(
    experiment: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment.outcome = PlacementError("too large")

    assert train.main(["experiment=cartpole", "run.seed=1,2", "-m"]) == 1
    assert len(experiment.ran) == 2


def test_multirun_finds_mistakes_before_the_first_run(
    experiment: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert train.main(["experiment=cartpole,cartpol", "-m"]) == 2
    assert train.main(["experiment=cartpole", "run.seed=1,2", "actors.cuont=3", "-m"]) == 2
    assert train.main(["experiment=cartpole", "actors.count=1,0", "-m"]) == 2
    assert not experiment.ran
    assert list(tmp_path.iterdir()) == []


# --- the process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["+experiment=hide_and_sek"], ["+experiment=hide_and_seek", "actors.cuont=3"]])
def test_typo_exits_at_once_and_starts_no_ray(argv: list[str], tmp_path: Path) -> None:
    started = time.monotonic()
    done = command(*argv, cwd=tmp_path, RAY_TMPDIR=str(tmp_path / "ray"), PYTHONPATH=str(ROOT))

    assert done.returncode == 2
    assert time.monotonic() - started < 10
    assert "Did you mean" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_before_the_configuration_is_good() -> None:
    code = """
        import sys
        import srl_ray, srl_ray.config, srl_ray.train
        srl_ray.train.main(["experiment=cartpole", "--cfg"])
        srl_ray.train.main(["experiment=cartpol"])
        heavy = {"ray", "torch", "gymnasium", "mujoco", "matplotlib", "tensorboard"} & set(sys.modules)
        assert not heavy, heavy
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_cheap() -> None:
    code = "import srl_ray, sys; assert not {'hydra', 'omegaconf', 'numpy', 'yaml'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- the wheel -------------------------------------------------------------------------------------------------------


def test_wheel_brings_its_configuration_files(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    source = tmp_path / "source"
    code = f"import os, hatchling.build; os.chdir({str(ROOT)!r}); print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert hatchling is not None
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(source)

    assert (source / "srl_ray" / "conf" / "config.yaml").is_file()
    assert not (source / "tests").exists()
    done = command("experiment=cartpole", "--cfg", cwd=tmp_path, PYTHONPATH=str(source))
    assert done.returncode == 0, done.stderr
    code = "import srl_ray.composition as c; print(c.conf_dir())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True
    )
    assert done.stdout.decode().strip() == str(source / "srl_ray" / "conf")
