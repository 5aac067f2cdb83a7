"""The configuration tree: what composes, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import srl_ray
from srl_ray.algorithms.config import CustomAlgorithmConfig, PPOConfig
from srl_ray.composition import choices, compose_tree, conf_dir
from srl_ray.config import ExperimentConfig, as_config, compose, from_mapping, from_yaml, to_mapping, to_yaml
from srl_ray.core.errors import ConfigError
from srl_ray.envs.config import EnvConfig
from srl_ray.models.config import ActorCriticConfig, CustomPolicyConfig, HideAndSeekPolicyConfig
from srl_ray.policy.config import PolicyWorkersConfig
from srl_ray.runtime.config import RunConfig
from srl_ray.trainer.config import TrainersConfig

pytestmark = pytest.mark.unit


class LocalEnv:
    """Stands for an environment class defined in a notebook cell."""


def message_of(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    return str(caught.value)


# --- composing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", choices("experiment"))
@pytest.mark.parametrize("layout", ["default", "inline", "remote", "two_trainers"])
def test_every_experiment_composes_in_every_layout(experiment: str, layout: str) -> None:
    config = compose([f"experiment={experiment}", f"layout={layout}"])

    assert config.name == experiment
    assert config.inference == ("remote" if layout == "remote" else "inline")
    assert config.trainers.count == (2 if layout == "two_trainers" else 1)
    assert not config.notes()


@pytest.mark.parametrize("group", ["policy", "algorithm", "placement", "layout"])
def test_every_choice_composes(group: str) -> None:
    for choice in choices(group):
        extra = [f"{group}.target=my.module:make"] if choice == "custom" else []
        env = "hide_and_seek" if choice.startswith("hide_and_seek") else "CartPole-v1"
        compose([f"{group}={choice}", f"env.id={env}", "actors.sample_steps=160", "trainers.batch_chunks=32", *extra])


def test_experiment_may_be_given_with_or_without_plus() -> None:
    assert compose(["experiment=cartpole"]) == compose(["+experiment=cartpole"]) == compose(["++experiment=cartpole"])


def test_command_line_wins_over_experiment_and_layout_wins_over_experiment() -> None:
    config = compose(["policy=lstm", "actors.count=3", "layout=remote", "stop.env_steps=10", "experiment=cartpole"])

    assert isinstance(config.policy, ActorCriticConfig)
    assert config.policy.recurrent == "lstm"
    assert config.actors.count == 3
    assert config.policy_workers.count == 1
    assert config.stop.env_steps == 10


def test_groups_pick_the_dataclass() -> None:
    assert type(compose(["experiment=hide_and_seek"]).policy) is HideAndSeekPolicyConfig
    custom = compose(["policy=custom", "policy.target=a.b:c", "policy.kwargs.width=3", "env.id=X-v0"])
    assert custom.policy == CustomPolicyConfig(target="a.b:c", kwargs={"width": 3})
    algorithm = compose(["algorithm=custom", "algorithm.target=a:b", "algorithm.kwargs.x=1", "env.id=X-v0"]).algorithm
    assert algorithm == CustomAlgorithmConfig(target="a:b", kwargs={"x": 1})


def test_kwargs_and_labels_pass_through_without_plus() -> None:
    config = compose(
        [
            "env.factory=my.module:make",
            "env.kwargs.level=3",
            "env.kwargs.deep.er=[1,2]",
            "+env.kwargs.name=x",
            "placement.actors_labels.pool=cpu",
        ]
    )

    assert config.env.kwargs == {"level": 3, "deep": {"er": [1, 2]}, "name": "x"}
    assert config.placement.actors_labels == {"pool": "cpu"}


def test_plain_text_values_need_no_quotes() -> None:
    config = compose(["experiment=cartpole", "run.dir=/data/my runs/lr=1e-3 (b)", "run.resume=runs/a=b/checkpoints"])

    assert config.run.dir == "/data/my runs/lr=1e-3 (b)"
    assert config.run.resume == "runs/a=b/checkpoints"


def test_environment_without_experiment_names_the_run() -> None:
    assert compose(["env.id=Acrobot-v1"]).name == "acrobot-v1"
    assert compose(["env.id=ALE/Pong-v5"]).name == "pong-v5"
    assert compose(["env.factory=my.envs:Maze"]).name == "maze"


def test_a_directory_of_ones_own_adds_experiments(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [cartpole, _self_]\nname: mine\nactors: {count: 7}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)

    config = compose(["experiment=mine"], config_dir=tmp_path)

    assert (config.name, config.actors.count, config.env.id) == ("mine", 7, "CartPole-v1")


def test_hydra_is_left_as_it_was_found() -> None:
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra

    compose(["experiment=cartpole"])
    with pytest.raises(ConfigError):
        compose(["experiment=nope"])
    assert not GlobalHydra.instance().is_initialized()
    assert not any("schema" in name for name in ConfigStore.instance().repo)

    with hydra.initialize(config_path=None, version_base="1.3"):
        before = GlobalHydra.instance().hydra
        compose(["experiment=cartpole"])
        assert GlobalHydra.instance().hydra is before


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_unknown_experiment_names_the_nearest_and_lists_all() -> None:
    message = message_of("experiment=hide_and_sek")

    assert "Did you mean hide_and_seek?" in message
    assert all(name in message for name in choices("experiment"))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("actors.cuont=2", "actors.count"),
        ("actor.count=2", "actors.count"),
        ("trainrs.batch_chunks=2", "trainers.batch_chunks"),
        ("trainers.bach_chunks=2", "trainers.batch_chunks"),
        ("actors.batch_chunks=2", "trainers.batch_chunks"),
        ("+env.idd=x", "env.id"),
        ("++env.envs_per_blok=3", "env.envs_per_block"),
        ("env.kwarg=3", "env.kwargs"),
        ("env_steps=100", "stop.env_steps"),
        ("algorithm.lr=1", "algorithm.learning_rate"),
        ("layot=remote", "layout"),
        ("algorithm=pppo", "ppo"),
        ("policy=lstn", "lstm"),
        ("layout=remot", "remote"),
        ("actors.inference=inlin", "inline"),
        ("env.on_error=restrat", "restart"),
    ],
)
def test_typos_name_the_nearest(override: str, expected: str) -> None:
    assert f"Did you mean {expected}?" in message_of("experiment=cartpole", override)


def test_hopeless_key_lists_what_there_is() -> None:
    assert "stop has env_steps, seconds, episode_return" in message_of("experiment=cartpole", "stop.xyz=1")
    assert "sections are run, stop, env" in message_of("experiment=cartpole", "qqq=1")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("actors.count=many", "actors.count must be an integer, got 'many'"),
        ("algorithm.learning_rate=fast", "algorithm.learning_rate must be a number, got 'fast'"),
        ("run.tensorboard=perhaps", "run.tensorboard must be true or false, got 'perhaps'"),
        ("actors.count=0", "actors.count must be >= 1, got 0"),
        ("trainers.gpus=1.5", "trainers.gpus must be in [0, 1], got 1.5"),
        ("actors=3", "actors is a section"),
        ("actors.count=1,2", "--multirun"),
        ("~stop.env_steps", "stop.env_steps=null"),
        ("lonely", "write key=value"),
        ("run.resume=true", "run.resume must be null, auto or the path"),
        ("name=a/b", "name names a directory"),
        ("env.factory=my_package.envs.make", "env.factory must be an import path"),
        ("actors.cpus=0", "actors.cpus must be > 0"),
        ("cluster.num_cpus=0", "cluster.num_cpus must be >= 1"),
        ("stop.seconds=-1", "stop.seconds must be > 0"),
    ],
)
def test_wrong_values_are_explained(override: str, expected: str) -> None:
    assert expected in message_of("experiment=cartpole", override)


def test_all_mistakes_are_reported_together() -> None:
    message = message_of("experiment=cartpole", "actors.cuont=2", "trainers.count=x", "env.idd=3")
    assert "3 problems" in message
    assert all(text in message for text in ("actors.count?", "trainers.count must be an integer", "env.id?"))

    message = message_of("experiment=cartpole", "actors.count=0", "trainers.gpus=7", "stop.env_steps=0")
    assert "3 problems" in message

    message = message_of("experiment=cartpole", "actors.inference=remote", "run.deterministic=true")
    assert "2 problems" in message


def test_mistakes_in_a_file_name_file_and_key(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nactors: {cuont: 7}\n")

    with pytest.raises(ConfigError, match=r"experiment/mine.*actors\.cuont.*Did you mean count\?"):
        compose(["experiment=mine", "env.id=X-v0"], config_dir=tmp_path)


def test_no_environment_says_how_to_give_one() -> None:
    message = message_of()
    assert all(text in message for text in ("experiment=", "env.id=", "env.factory="))


def test_required_values_are_asked_for() -> None:
    assert "policy.target" in message_of("env.id=X-v0", "policy=custom")
    assert "algorithm.target" in message_of("env.id=X-v0", "algorithm=custom")


# --- combinations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["policy=lstm", "actors.sample_steps=30"], "multiple of policy.bptt_steps, got 30 and 16"),
        (["policy=lstm", "trainers.batch_chunks=2"], "algorithm.minibatches must be <= 2"),
        (["actors.sample_steps=1"], "actors.sample_steps must be >= 2, got 1"),
        (["actors.sample_steps=2", "trainers.batch_chunks=1"], "algorithm.minibatches must be <= 2"),
        (["actors.inference=remote"], "policy_workers.count >= 1"),
        (["policy.cuda_graphs=true"], "actors.gpus is 0"),
        (["policy.cuda_graphs=true", "layout=remote"], "policy_workers.gpus is 0"),
        (["actors.inference=inline", "policy_workers.count=1"], "policy_workers.count=1 without work"),
        (["run.deterministic=true"], "trainers.max_staleness=0 (it is 1)"),
        (["run.deterministic=true", "trainers.max_staleness=0", "layout=remote"], "actors.inference=inline"),
        (["run.deterministic=true", "trainers.max_staleness=0", "layout=two_trainers"], "trainers.count=1 (it is 2)"),
        (["stop.env_steps=null"], "algorithm.learning_rate_end"),
        (["trainers.count=2"], "Set actors.ring_size=2 or raise actors.count"),
        (["trainers.buffer_chunks=2"], "trainers.buffer_chunks must be >= 8"),
        (["policy=hide_and_seek", "actors.sample_steps=80"], "env.id='CartPole-v1'"),
        (["env.id=hide_and_seek", "env.kwargs.scenari=quadrant"], "Did you mean env.kwargs.scenario?"),
        (["env.id=hide_and_seek", "env.kwargs.scenario=quadrat"], "Did you mean quadrant?"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], expected: str) -> None:
    assert expected in message_of("experiment=cartpole", *overrides)


def test_deterministic_run_composes_when_its_needs_are_met() -> None:
    assert compose(["experiment=cartpole", "run.deterministic=true", "trainers.max_staleness=0"]).run.deterministic


def test_options_without_effect_are_noted() -> None:
    config = compose(
        [
            "env.id=CartPole-v1",
            "actors.burn_in=4",
            "policy_workers.gpus=0.5",
            "env.envs_per_block=64",
            "policy_workers.transport=ray",
        ]
    )
    text = " ".join(config.notes())

    assert all(
        key in text
        for key in (
            "actors.burn_in",
            "policy_workers.gpus",
            "policy_workers.transport",
            "envs_per_block",
            "stop.env_steps",
        )
    )


def test_derived_numbers() -> None:
    feed_forward = compose(
        ["experiment=cartpole", "layout=two_trainers", "trainers.max_staleness=3", "trainers.reuse=2"]
    )
    assert feed_forward.segment_steps == feed_forward.actors.sample_steps
    assert feed_forward.batch_chunks_per_trainer == 4
    assert feed_forward.chunks_under_way == 16
    assert feed_forward.start_timeout_s == 180.0
    assert compose(["experiment=cartpole", "policy.compile=both"]).start_timeout_s == 540.0
    assert compose(["experiment=cartpole", "trainers.max_staleness=null"]).chunks_under_way is None
    assert compose(["experiment=cartpole_lstm"]).segment_steps == 16


# --- from Python -----------------------------------------------------------------------------------------------------


def test_python_objects_are_checked_like_the_command_line() -> None:
    config = ExperimentConfig(env=EnvConfig(factory=LocalEnv))
    assert config.name == "localenv"

    with pytest.raises(ConfigError, match=r"policy_workers\.count >= 1"):
        ExperimentConfig(
            env=EnvConfig(id="X-v0"),
            actors=dataclasses.replace(config.actors, inference="remote"),
            policy_workers=PolicyWorkersConfig(count=0),
        )
    with pytest.raises(ConfigError, match=r"policy\.target is not set"):
        ExperimentConfig(env=EnvConfig(id="X-v0"), policy=CustomPolicyConfig())


def test_changes_after_construction_are_checked_when_run() -> None:
    config = compose(["experiment=cartpole"])
    config.actors.count = 0

    with pytest.raises(ConfigError, match=r"actors\.count must be >= 1"):
        as_config(config)


def test_all_forms_give_the_same_configuration() -> None:
    overrides = ["experiment=cartpole", "policy=lstm", "actors.count=2", "env.kwargs.a=1"]
    nested = {"experiment": "cartpole", "policy": "lstm", "actors": {"count": 2}, "env": {"kwargs": {"a": 1}}}
    dotted = {"experiment": "cartpole", "policy": "lstm", "actors.count": 2, "env.kwargs.a": 1}

    expected = srl_ray.compose(overrides)
    assert as_config(overrides) == as_config(nested) == as_config(dotted) == as_config(expected) == expected
    with pytest.raises(ConfigError, match="list of overrides"):
        as_config("experiment=cartpole")


def test_mapping_keeps_objects() -> None:
    config = from_mapping({"experiment": "cartpole", "env": {"factory": LocalEnv, "kwargs": {"inner": LocalEnv}}})

    assert config.env.factory is LocalEnv
    assert config.env.kwargs["inner"] is LocalEnv


def test_mapping_is_laid_over_the_experiment() -> None:
    config = from_mapping({"experiment": "hide_and_seek_quadrant", "env": {"kwargs": {"preset": "fast"}}})

    assert config.env.kwargs == {"scenario": "quadrant", "preset": "fast"}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"experiment": "cartpol"}, "Did you mean cartpole?"),
        ({"experiment": "cartpole", "actors": {"cuont": 2}}, "Did you mean actors.count?"),
        ({"experiment": "cartpole", "actors": {"count": "x"}}, "actors.count must be an integer"),
        ({"experiment": "cartpole", "actors": 3}, "actors is a section"),
        ({"experiment": "cartpole", "policy": {"kind": "actor_critc"}}, "Did you mean actor_critic?"),
    ],
)
def test_mistakes_in_mappings_are_explained(mapping: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(mapping)
    assert expected in str(caught.value)


@pytest.mark.parametrize("experiment", choices("experiment"))
def test_yaml_round_trip(experiment: str, tmp_path: Path) -> None:
    config = compose([f"experiment={experiment}", "run.resume=auto", "env.id=X-v0", "policy=mlp", "env.kwargs={}"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))

    assert from_yaml(to_yaml(config)) == config
    assert from_yaml(path) == from_yaml(str(path)) == config


def test_yaml_keeps_the_kind_and_writes_objects_as_import_paths() -> None:
    config = ExperimentConfig(
        env=EnvConfig(factory=LocalEnv, kwargs={"pair": (1, 2)}),
        policy=CustomPolicyConfig(target="a:b"),
        algorithm=PPOConfig(epochs=3),
        run=RunConfig(seed=5),
        trainers=TrainersConfig(max_staleness=None),
    )
    mapping = to_mapping(config)
    assert mapping["policy"]["kind"] == "custom"
    assert mapping["env"]["factory"] == f"{LocalEnv.__module__}:LocalEnv"

    again = from_yaml(to_yaml(config))
    assert again.policy == config.policy
    assert again.algorithm == config.algorithm
    assert again.trainers.max_staleness is None
    assert again.env.kwargs == {"pair": [1, 2]}


def test_unreadable_yaml_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_file"):
        from_yaml(tmp_path / "no_such_file.yaml")
    with pytest.raises(ConfigError, match="expected a mapping"):
        from_yaml("- 1\n- 2\n")


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_hold_choices_not_the_defaults() -> None:
    """A value in conf/ that equals the dataclass's default is a second copy of it (experiments may insist)."""
    import yaml

    plain = to_mapping(ExperimentConfig(env=EnvConfig(id="X-v0")))
    for choice in choices("algorithm"):
        values = yaml.safe_load((conf_dir() / "algorithm" / f"{choice}.yaml").read_text())
        repeated = [
            key for key, value in values.items() if key in plain["algorithm"] and plain["algorithm"][key] == value
        ]
        assert not repeated, f"conf/algorithm/{choice}.yaml repeats defaults: {repeated}"


def test_tree_needs_no_environment_to_be_composed() -> None:
    assert compose_tree([]).env.id == ""


def test_configuration_reference_is_current() -> None:
    script = Path(__file__).parents[2] / "scripts" / "config_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
