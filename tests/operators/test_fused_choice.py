"""What is fused, what is not, and why."""

from __future__ import annotations

import warnings

import pytest
import torch

import pathgp
from fused_cases import DEVICE, KERNELS, SEVERAL, counts, error, normal
from pathgp import kernels
from pathgp.compute import triton
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators import kernel as kernel_module
from pathgp.operators.dense import Dense
from pathgp.operators.fused import backend, fallback_reason

pytest.importorskip("triton", minversion="3.6")


def test_nothing_to_do() -> None:
    H = KernelOperator(KERNELS["SE"](), normal(5, 2, 0), 0.1, pathgp.Compute("fused"))
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    V = normal(5, 2, 1)
    assert H.rows(none, V).shape == (0, 2)
    assert torch.equal(H.columns(none, V[:0]), torch.zeros_like(V))
    assert (H @ V[:, :0]).shape == (5, 0)


def test_what_is_not_fused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    X = normal(5, 2, 0)
    with pytest.raises(ValueError, match="no fused tile for Task"):
        KernelOperator(
            kernels.SquaredExponential(1.0) + kernels.Task(3, active_dims=[0]), X, compute=pathgp.Compute("fused")
        )
    with pytest.raises(ValueError, match="for counts"):
        KernelOperator(kernels.Tanimoto(), X.abs(), compute=pathgp.Compute("fused"))
    with pytest.raises(ValueError, match="add up to 9000"):
        KernelOperator(kernels.Tanimoto(), torch.ones(5, 9000, device=DEVICE), compute=pathgp.Compute("fused"))
    with pytest.raises(ValueError, match="for counts"):
        cross_product(kernels.Tanimoto(), X.abs(), X.abs().round(), X, backend="fused")
    with pytest.raises(ValueError, match="no fused tile for Matern"):
        cross_product(kernels.Matern(0.7, 1.0), X, X, X, backend="fused")
    with pytest.raises(ValueError, match="float32"):
        KernelOperator(kernels.SquaredExponential(1.0), X.double(), compute=pathgp.Compute("fused"))
    with pytest.raises(ValueError, match="'high', 'medium', 'low'"):
        KernelOperator(kernels.SquaredExponential(1.0), X, compute=pathgp.Compute(precision="half"))
    with pytest.raises(ValueError, match="'streamed' or 'fused'"):
        cross_product(kernels.SquaredExponential(1.0), X, X, X, backend="dense")
    monkeypatch.setattr(triton, "interpreting", lambda: False)
    with pytest.raises(ValueError, match="CUDA"):
        KernelOperator(kernels.SquaredExponential(1.0), X.cpu(), compute=pathgp.Compute("fused"))


@pytest.mark.parametrize(
    ("version", "runs"), [("3.2.0", False), ("3.5.1", False), ("3.6.0+git1a2b", True), ("4.0", True)]
)
def test_an_old_triton_is_not_used(version: str, runs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "_version", lambda: version)
    reason = triton.missing(torch.device("cuda"))
    assert reason == "" if runs else f"Triton 3.6, which comes with torch 2.10; this is Triton {version}" in reason


def test_the_automatic_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: fused above a number of rows or where K does not fit, else dense or streamed with the reason."""
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    monkeypatch.setattr(kernel_module, "SMALL", 100)
    matern, tanimoto, X = KERNELS["SE"](), kernels.Tanimoto(), normal(SEVERAL, 2, 0).abs()
    assert KernelOperator(matern, X).backend == "fused"
    assert KernelOperator(matern, X, compute=pathgp.Compute(group=pathgp.Devices([DEVICE]))).backend == "fused"
    assert KernelOperator(matern, X[:100]).backend == "dense"
    assert KernelOperator(matern, X[:100], compute=pathgp.Compute(memory=10_000)).backend == "fused"
    assert KernelOperator(matern, X, compute=pathgp.Compute("streamed")).backend == "streamed"
    kept = KernelOperator(matern, X, compute=pathgp.Compute("dense"))
    assert kept.backend == "dense"
    assert isinstance(kept._tiles, Dense)
    assert isinstance(kept._tiles.tiles, backend.Fused)
    assert not kept.fallback_reason
    assert "dense: fused Tanimoto kernels are for counts" in repr(KernelOperator(tanimoto, X))
    assert "streamed: fused Tanimoto" in repr(KernelOperator(tanimoto, X, compute=pathgp.Compute(memory=50_000)))
    assert "float64" in KernelOperator(matern, X.double()).fallback_reason


def test_what_does_not_fit_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many columns: in two parts they may fit, in three not; differences and bits need no room for points."""
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    monkeypatch.setattr(kernel_module, "SMALL", 0)
    matern, crowd = kernels.Matern(1.5, 20.0), kernels.Sum(*(kernels.Matern(1.5, 20.0) for _ in range(5)))
    for kernel, d in ((matern, 600), (crowd, 100)):
        X = normal(20, d, 0)
        H = KernelOperator(kernel, X, compute=pathgp.Compute(memory=1000))
        assert "streamed: " in repr(H)
        assert "too many" in H.fallback_reason
        V = normal(20, 3, 1)
        expected = kernel(X.double()).detach() @ V.double()
        assert error(cross_product(kernel, X, X, V), expected) < 2e-6
        with pytest.raises(ValueError, match="too many for the tiles of fused products: use backend='auto'"):
            cross_product(kernel, X, X, V, backend="fused")
    X = normal(20, 300, 0)
    assert KernelOperator(matern, X).backend == "fused"
    assert not fallback_reason(matern, X, X)
    far = torch.cat([X[:19], 20.0 * X[19:]])
    assert "512 prepared columns" in KernelOperator(matern, far).fallback_reason
    assert "512 prepared columns" in fallback_reason(matern, far, X)
    assert not fallback_reason(kernels.Matern(0.5, 20.0), normal(20, 600, 0))
    mixed, X = kernels.Tanimoto(range(80)) * kernels.Matern(1.5, 100.0, range(80, 220)), counts(20, 220, 0.3, 0)
    assert not fallback_reason(mixed, X)
    assert "256 prepared columns" in fallback_reason(mixed, 12.0 * X)
    assert not fallback_reason(mixed, 30.0 * X)


def test_distant_points_in_many_columns_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit may reach length scales so short that no fused form of the points keeps their digits."""
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    monkeypatch.setattr(kernel_module, "SMALL", 0)
    kernel, X, V = kernels.Matern(1.5, 1e-7), normal(20, 20, 0), normal(20, 3, 1)
    H = KernelOperator(kernel, X, compute=pathgp.Compute(memory=1000))
    assert H.backend == "streamed"
    assert "length scales apart in 20 columns" in H.fallback_reason
    assert error(cross_product(kernel, X, X, V), V.double()) < 2e-6


def test_predictions_that_are_not_fused_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is the new inputs alone; what the data stand in the way of, the report has told."""
    monkeypatch.setattr(triton, "preferred", lambda device: True)
    X, halves = counts(40, 6, 0.5, 0), counts(8, 6, 0.5, 1) / 2
    gp = pathgp.GP(kernels.Tanimoto(), noise=0.3)
    for data, told in ((X, 1), (X / 2, 0)):
        post = gp.condition(data, data[:, 0], samples=2, generator=torch.Generator().manual_seed(0))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = post.mean(halves)
        assert [str(one.message) for one in caught] == told * [
            "no fused products at these inputs, slower ones instead: fused Tanimoto kernels are for counts"
        ]
        assert all(one.filename == __file__ for one in caught)
        rows = gp.kernel(halves, data).detach()
        expected = rows @ torch.linalg.solve(gp.kernel(data).detach() + 0.09 * torch.eye(40, device=DEVICE), data[:, 0])
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
