"""Checkpoints: what goes in comes out, damage is skipped, mismatches are explained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from srl_ray.core.errors import CheckpointError
from srl_ray.runtime import checkpoint as module
from srl_ray.runtime.checkpoint import (
    Checkpoint,
    list_checkpoints,
    load_checkpoint,
    load_newest,
    read_facts,
    require,
    save_checkpoint,
)

pytestmark = pytest.mark.unit


def trained() -> tuple[torch.nn.Module, torch.optim.Adam]:
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 2)
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    network(torch.ones(3, 4)).sum().backward()
    adam.step()
    return network, adam


def test_optimiser_state_survives_exactly(tmp_path: Path):
    network, adam = trained()
    content = Checkpoint({"main": network.state_dict()}, {"optimizer": adam.state_dict()}, {"env_steps": 5})
    save_checkpoint(tmp_path / "step_5", content)
    loaded = load_checkpoint(tmp_path / "step_5")
    other = torch.nn.Linear(4, 2)
    loaded.install_policy(other, "main")
    again = torch.optim.Adam(other.parameters(), lr=0.5)
    again.load_state_dict(loaded.state["optimizer"])
    for net, opt in ((network, adam), (other, again)):
        opt.zero_grad()
        net(torch.full((1, 4), 0.5)).square().sum().backward()
        opt.step()
    assert torch.equal(network.weight, other.weight)
    assert loaded.facts == {"env_steps": 5}


def test_nested_plain_state_comes_back_with_its_types(tmp_path: Path):
    state = {
        "tuple": (1, 2.5, None),
        "list": [True, "x", []],
        "int keys": {0: {"a": 1}, 7: "b"},
        "infinity": float("inf"),
        "nan": float("nan"),
        "array": np.arange(3, dtype=np.uint8),
        "numpy scalar": np.float32(0.5),
        "tensor": torch.tensor(3.0, dtype=torch.bfloat16),
        "big": 2**80,
    }
    save_checkpoint(tmp_path / "step_1", state)
    loaded = load_checkpoint(tmp_path / "step_1").state
    assert loaded["tuple"] == (1, 2.5, None)
    assert loaded["list"] == [True, "x", []]
    assert loaded["int keys"] == {0: {"a": 1}, 7: "b"}
    assert loaded["infinity"] == float("inf")
    assert np.isnan(loaded["nan"])
    assert loaded["array"].dtype == np.uint8
    assert loaded["array"].flags.writeable
    assert loaded["numpy scalar"] == 0.5
    assert loaded["tensor"].dtype == torch.bfloat16
    assert loaded["big"] == 2**80


def test_what_cannot_be_stored_is_named_and_nothing_is_left(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"state\.a\.b is a .*Path"):
        save_checkpoint(tmp_path / "step_1", {"a": {"b": Path("x")}})
    assert list(tmp_path.iterdir()) == []


def test_saving_again_replaces(tmp_path: Path):
    for value in (1, 2):
        save_checkpoint(tmp_path / "step_1", {"v": value})
    assert load_checkpoint(tmp_path / "step_1").state == {"v": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]


def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save_checkpoint(tmp_path / "step_1", {"v": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_safetensors", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(tmp_path / "step_1", {"v": 2})
    assert load_checkpoint(tmp_path / "step_1").state == {"v": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]


@pytest.mark.parametrize("damage", ["tensors cut", "state cut", "state missing", "tensors missing"])
def test_a_damaged_newest_is_skipped_with_a_warning(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture):
    for step in (9, 10):
        save_checkpoint(tmp_path / f"step_{step:012d}", {"step": step, "w": torch.ones(50)})
    name, how = damage.split()
    file = tmp_path / "step_000000000010" / ("tensors.safetensors" if name == "tensors" else "state.json")
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    else:
        file.unlink()
    newest = load_newest(tmp_path)
    assert newest is not None
    assert newest.state["step"] == 9
    assert "trying the one before" in caplog.text


def test_newest_is_by_number_and_unfinished_ones_do_not_count(tmp_path: Path):
    for name in ("step_9", "step_10", ".step_11.77.tmp", "step_x"):
        (tmp_path / name).mkdir()
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_10", "step_9"]
    assert load_newest(tmp_path / "none") is None


def test_when_all_are_damaged_it_is_said(tmp_path: Path):
    (tmp_path / "step_1").mkdir()
    with pytest.raises(CheckpointError, match="none of its checkpoints can be read"):
        load_newest(tmp_path)


def test_another_format_version_names_both(tmp_path: Path):
    path = save_checkpoint(tmp_path / "step_1", {})
    document = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**document, "format": "99.0"}))
    with pytest.raises(CheckpointError, match=r"format 99\.0.*format 1\.0"):
        load_checkpoint(path)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"nowhere: does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        read_facts(tmp_path)


def test_shape_mismatches_show_both_and_load_nothing(tmp_path: Path):
    save_checkpoint(tmp_path / "step_1", Checkpoint({"a": torch.nn.Linear(4, 2).state_dict()}))
    loaded = load_checkpoint(tmp_path / "step_1")
    target = torch.nn.Linear(6, 2)
    before = target.bias.clone()
    with pytest.raises(CheckpointError, match=r"weight has shape \[2, 4\] in the checkpoint, \[2, 6\] in this run"):
        loaded.install_policy(target, "a")
    assert torch.equal(target.bias, before)
    with pytest.raises(CheckpointError, match=r"no policy 'c' \(it has: a\)"):
        loaded.install_policy(target, "c")


def test_facts_that_differ_are_listed_with_both_values():
    saved = {"obs": {"x": [4]}, "policies": {"a": 1, "b": 1}, "env": "CartPole-v1"}
    run = {"obs": {"x": [6]}, "policies": {"a": 1, "c": 1}, "env": "CartPole-v1"}
    with pytest.raises(CheckpointError) as caught:
        require("somewhere", saved, run)
    text = str(caught.value)
    assert "obs.x: [4] in the checkpoint, [6] in this run" in text
    assert "policies.b: 1 in the checkpoint, not in this run" in text
    assert "policies.c: not in the checkpoint, 1 in this run" in text
    require("somewhere", saved, saved)


def test_a_checkpoint_opens_without_ray_and_without_torch(tmp_path: Path):
    network, _ = trained()
    save_checkpoint(tmp_path / "step_1", Checkpoint({"main": network.state_dict()}))
    code = f"""
import sys
from srl_ray.runtime.checkpoint import load_checkpoint
loaded = load_checkpoint({str(tmp_path / "step_1")!r}, with_torch=False)
assert loaded.tensors["main"]["weight"].shape == (2, 4)
assert "ray" not in sys.modules and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_tensor_files_open_with_the_safetensors_package_alone(tmp_path: Path):
    from safetensors.torch import load_file

    network, _ = trained()
    save_checkpoint(tmp_path / "step_1", Checkpoint({"main": network.state_dict()}))
    assert torch.equal(load_file(tmp_path / "step_1" / "tensors.safetensors")["policies.main.weight"], network.weight)
