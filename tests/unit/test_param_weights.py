"""Flat weights: module → buffer → file → module, and words when they do not fit."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from srl_ray.param_server.files import IndexRecord, ParameterFiles
from srl_ray.param_server.store import NOTHING, Entry, RunningMean
from srl_ray.param_server.weights import (
    DamagedFile,
    WeightsMismatch,
    flatten,
    install,
    load_safetensors,
    save_safetensors,
    snapshot,
    unflatten_tensors,
)

pytestmark = pytest.mark.unit


class Mixed(torch.nn.Module):
    """Every kind of entry: parameters, a counter, odd-sized bytes, half precision, a scalar."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        self.register_buffer("flags", torch.rand(3) > 0.5)
        self.register_buffer("narrow", torch.randn(5).bfloat16())
        self.register_buffer("scale", torch.tensor(float(seed)))
        self.register_buffer("count", torch.tensor([seed, 2], dtype=torch.float64))


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, b.state_dict()[k]) for k, x in a.state_dict().items())


def test_install_restores_a_snapshot_exactly_and_in_place():
    source, target = Mixed(1), Mixed(2)
    flat = snapshot(source)
    flat.data.setflags(write=False)
    address = target.layers[0].weight.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        install(target, flat)
    assert same(source, target)
    assert target.layers[0].weight.data_ptr() == address


def test_a_snapshot_does_not_follow_the_module():
    module = torch.nn.Linear(2, 2)
    flat = snapshot(module)
    before = unflatten_tensors(flat)["weight"]
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(unflatten_tensors(flat)["weight"], before)


def test_mismatches_name_every_difference_and_change_nothing():
    class A(torch.nn.Module):
        def __init__(self, width: int, extra: str) -> None:
            super().__init__()
            self.body = torch.nn.Linear(width, 2)
            self.register_parameter(extra, torch.nn.Parameter(torch.zeros(1)))

    target = A(6, "gain")
    before = snapshot(target)
    with pytest.raises(WeightsMismatch) as caught:
        install(target, snapshot(A(4, "bias")))
    text = str(caught.value)
    assert "body.weight: shape [2, 4] in the weights, [2, 6] in the policy" in text
    assert "gain: missing in the weights" in text
    assert "bias: not part of the policy" in text
    assert np.array_equal(snapshot(target).data, before.data)


def test_floating_dtypes_are_converted():
    flat = snapshot(torch.nn.Linear(2, 2).bfloat16())
    target = torch.nn.Linear(2, 2)
    install(target, flat)
    assert target.weight.dtype == torch.float32


def test_the_file_opens_with_the_safetensors_package(tmp_path: Path):
    from safetensors.torch import load_file

    module = Mixed(3)
    save_safetensors(tmp_path / "w.safetensors", snapshot(module), {"version": "7"})
    loaded = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(loaded[k], v) for k, v in module.state_dict().items())
    flat, metadata = load_safetensors(tmp_path / "w.safetensors")
    target = Mixed(4)
    install(target, flat)
    assert same(module, target)
    assert metadata["version"] == "7"
    assert list(tmp_path.iterdir()) == [tmp_path / "w.safetensors"]


def test_files_of_the_safetensors_package_open_here(tmp_path: Path):
    from safetensors.numpy import save_file

    arrays = {"b": np.arange(3, dtype=np.uint8), "a": np.eye(2, dtype=np.float32)}
    save_file(arrays, tmp_path / "w.safetensors")
    loaded = load_safetensors(tmp_path / "w.safetensors")[0].arrays()
    assert np.array_equal(loaded["a"], arrays["a"])
    assert np.array_equal(loaded["b"], arrays["b"])


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "noise", "header"])
def test_damage_is_noticed(tmp_path: Path, damage: str):
    path = tmp_path / "w.safetensors"
    save_safetensors(path, flatten({"a": np.arange(100, dtype=np.float32)}))
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    kept = {"cut": data[:-10], "flip": data, "empty": b"", "noise": b"\xff" * 50, "header": data[:20]}[damage]
    path.write_bytes(kept)
    with pytest.raises(DamagedFile):
        load_safetensors(path)


def test_an_empty_module_is_no_special_case(tmp_path: Path):
    flat = snapshot(torch.nn.ReLU())
    save_safetensors(tmp_path / "w.safetensors", flat)
    install(torch.nn.ReLU(), load_safetensors(tmp_path / "w.safetensors")[0])


def test_extra_state_is_refused_by_name():
    class Extra(torch.nn.Module):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(ValueError, match=r"_extra_state.*dict"):
        snapshot(Extra())


# -- files ------------------------------------------------------------------------------------------------------------


def write(files: ParameterFiles, *versions: int, policy: str = "team/red") -> None:
    entries = [Entry(policy, 0, v, None, {f"t{v}"}, {"note": "x"}, {"return": RunningMean(2.0, 3)}) for v in versions]
    for entry in entries:
        files.write_weights(policy, entry.stamp, flatten({"a": np.full(4, entry.version, np.float32)}))
    files.write_index(policy, [IndexRecord.of(e) for e in entries])


def test_versions_come_back_with_their_facts(tmp_path: Path):
    write(ParameterFiles(tmp_path), 1, 2)
    files = ParameterFiles(tmp_path)
    entries = {e.version: e for e in files.read_all()}
    assert set(entries) == {1, 2}
    assert entries[2].policy == "team/red"
    assert entries[2].tags == {"t2"}
    assert entries[2].metadata == {"note": "x"}
    assert (entries[2].means["return"].mean, entries[2].means["return"].count) == (2.0, 3)
    assert files.read_weights("team/red", (0, 2)).arrays()["a"][0] == 2.0


def test_a_damaged_version_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = ParameterFiles(tmp_path)
    write(files, 1, 2)
    files.path("team/red", (0, 2)).write_bytes(b"half")
    assert [e.version for e in files.read_all()] == [1]
    assert "skipping version 2" in caplog.text


def test_a_damaged_index_falls_back_to_the_file_names(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    files = ParameterFiles(tmp_path)
    write(files, 1, 2)
    next(tmp_path.glob("*/index.json")).write_text("{")
    assert sorted(e.version for e in files.read_all()) == [1, 2]
    assert "damaged" in caplog.text


def test_another_run_keeps_only_what_is_tagged_and_below_its_own_epochs(tmp_path: Path):
    write(ParameterFiles(tmp_path, "first"), 1, 2)
    index = next(tmp_path.glob("*/index.json"))
    index.write_text(index.read_text().replace('"t2"', ""))
    assert {e.version for e in ParameterFiles(tmp_path, "first").read_all()} == {1, 2}
    for run_id, epoch in (("second", -2), ("second", -2), ("third", -2)):
        (entry,) = ParameterFiles(tmp_path, run_id).read_all()
        assert (entry.epoch, entry.version, entry.tags) == (epoch, 1, {"t1"})
        assert entry.stamp < NOTHING
        assert ParameterFiles(tmp_path).read_weights("team/red", entry.stamp).arrays()["a"][0] == 1.0
    files = ParameterFiles(tmp_path, "third")
    files.write_weights("team/red", (0, 1), flatten({"a": np.full(4, 9.0, np.float32)}))
    newer = IndexRecord(0, 1, ["new"])
    files.write_index("team/red", [newer, IndexRecord.of(entry)])
    both = {e.stamp: e.tags for e in ParameterFiles(tmp_path, "fourth").read_all()}
    assert both == {(-3, 1): {"new"}, (-5, 1): {"t1"}}
    assert files.read_weights("team/red", (-3, 1)).arrays()["a"][0] == 9.0
    assert files.read_weights("team/red", (-5, 1)).arrays()["a"][0] == 1.0


def test_the_index_removes_files_it_does_not_name(tmp_path: Path):
    files = ParameterFiles(tmp_path)
    write(files, 1, 2)
    write(files, 3)
    assert not files.exists("team/red", (0, 1))
    assert files.exists("team/red", (0, 3))


def test_an_absent_directory_is_empty(tmp_path: Path):
    assert ParameterFiles(tmp_path / "none").read_all() == []
