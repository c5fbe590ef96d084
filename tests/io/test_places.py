"""Where a posterior is saved and loaded: files replaced whole, strides, groups, and other devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import pathgp
from grid_cases import Grid
from pathgp import GP
from pathgp.compute import files
from posterior_cases import CASES, Case
from saving_cases import again, assert_same, grid_posterior, seeded, small, uniform


def test_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "post"
    posterior = small()
    posterior.save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        small(samples=3).save(path)
    assert [file.name for file in path.parent.iterdir()] == ["post"]
    assert path.read_bytes() == before
    monkeypatch.undo()
    small(samples=3).save(str(path))
    assert pathgp.load(str(path)).num_samples == 3


def test_strides_are_kept(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    tensors = [base, base.permute(2, 0, 1), base[:, :, :0], base[0, 0, 0], base[:, :1].transpose(0, 2), base > 3]
    files.write(tmp_path / "file", {"tensors": tensors, "twice": [tensors[0], tensors[0].long()]})
    content = files.read(tmp_path / "file")
    for found, expected in zip(content["tensors"], tensors, strict=True):
        assert_same(found, expected)
    assert content["tensors"][1].stride() == tensors[1].stride() == (1, 12, 4)
    assert content["twice"][0] is content["tensors"][0]
    with pytest.raises(TypeError, match="complex64"):
        files.write(tmp_path / "file", {"tensor": torch.ones(2, dtype=torch.complex64)})


def test_one_process_takes_over_from_several(tmp_path: Path) -> None:
    group = pathgp.Devices(["cpu", "cpu"])
    posterior, Xs = small(compute=pathgp.Compute(group=group)), uniform(5, seed=1)
    found = again(posterior, tmp_path / "post")
    assert found.settings.compute.group is None
    torch.testing.assert_close(found.paths(Xs), posterior.paths(Xs))
    torch.testing.assert_close(found.covariance(Xs), posterior.covariance(Xs))
    group.leader = False
    posterior.save(tmp_path / "of another rank")
    assert not (tmp_path / "of another rank").exists()


def test_a_file_with_the_settings_of_an_earlier_version(tmp_path: Path) -> None:
    posterior = small(compute=pathgp.Compute("streamed", memory=10**7))
    posterior.save(tmp_path / "post")
    content = files.read(tmp_path / "post")
    compute = {name: value for name, value in content["settings"].pop("compute").items() if name != "$class"}
    files.write(tmp_path / "post", {**content, "settings": {**content["settings"], **compute}})
    assert pathgp.load(tmp_path / "post").settings == posterior.settings


def test_a_device_that_is_not_here(tmp_path: Path) -> None:
    posterior = small(compute=pathgp.Compute("dense"))
    posterior.save(tmp_path / "post")
    content = files.read(tmp_path / "post")
    files.write(tmp_path / "post", {**content, "device": "cuda:77"})
    found = pathgp.load(tmp_path / "post")
    assert_same(found.mean(uniform(3)), posterior.mean(uniform(3)))
    assert found.settings.compute.backend == "auto"
    with pytest.raises(RuntimeError):
        pathgp.load(tmp_path / "post", device="nowhere")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_from_one_device_to_another(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    X, y, Xs = (part.to("cuda", dtype) for part in case.data(40, 12))
    posterior = GP(case.kernel, 0.3, standardise=case.name != "tanimoto" and "task" not in case.name).condition(
        X, y, samples=6, tol=1e-3, generator=seeded()
    )
    found = again(posterior, tmp_path / "post")
    assert found.model.noise.device.type == "cuda"
    for ask in ("mean", "variance", "paths", "covariance"):
        assert_same(getattr(found, ask)(Xs).cpu(), getattr(posterior, ask)(Xs).cpu())
    moved = pathgp.load(tmp_path / "post", device="cpu")
    moved.save(tmp_path / "moved")
    back = pathgp.load(tmp_path / "moved", device="cuda")
    # Which neighbours tell most may differ by rounding.
    asked = {"mean": {}, "variance": {"method": "samples"}, "paths": {}, "covariance": {}}
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    for ask, how in asked.items():
        expected = getattr(posterior, ask)(Xs, **how).cpu()
        torch.testing.assert_close(getattr(moved, ask)(Xs.cpu(), **how), expected, **tolerance)
        torch.testing.assert_close(getattr(back, ask)(Xs, **how).cpu(), expected, **tolerance)
    moved.update(Xs.cpu(), Xs[:, 0].cpu())
    back.update(Xs, Xs[:, 0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_grid_from_one_device_to_another(tmp_path: Path) -> None:
    posterior = grid_posterior(standardise=True)
    posterior.save(tmp_path / "post")
    found = pathgp.load(tmp_path / "post", device="cuda")
    for ask in ("mean", "variance", "paths"):
        torch.testing.assert_close(getattr(found, ask)().cpu(), getattr(posterior, ask)(), rtol=1e-4, atol=1e-5)
    found.update(Grid(2).Y.nan_to_num(0.1).cuda())
