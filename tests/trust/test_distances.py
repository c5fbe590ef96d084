"""Distances are right pair by pair: no value depends on the other rows of a call, however far they lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from cli_cases import Capture, numbers, read, write
from fused_cases import DEVICE
from pathgp import GP, Compute, kernels
from pathgp.cli import main
from pathgp.compute.triton import missing
from pathgp.kernels import distance
from pathgp.operators import KernelOperator, cross_product
from pathgp.operators.fused import backend
from pathgp.sklearn import GPRegressor

# Twelve orders of magnitude, in units of the inputs; length scales are about 0.5.
DISTANCES = [10.0**k for k in range(13)]
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
TEN_YEARS = 3.156e8

Covariance = Callable[[Tensor, Tensor, Tensor], Tensor]
RADIAL: dict[str, tuple[Callable[[Tensor], kernels.Kernel], Covariance]] = {
    "SE": (kernels.SquaredExponential, reference.squared_exponential),
    "Matern-1/2": (lambda l: kernels.Matern(0.5, l), lambda X, Z, l: reference.matern(X, Z, 0.5, l)),
    "Matern-3/2": (lambda l: kernels.Matern(1.5, l), lambda X, Z, l: reference.matern(X, Z, 1.5, l)),
    "Matern-5/2": (lambda l: kernels.Matern(2.5, l), lambda X, Z, l: reference.matern(X, Z, 2.5, l)),
    "RQ": (lambda l: kernels.RationalQuadratic(0.8, l), lambda X, Z, l: reference.rational_quadratic(X, Z, 0.8, l)),
}
KERNELS: dict[str, Callable[[], kernels.Kernel]] = {
    **{name: (lambda make=make: make(torch.tensor(0.5))) for name, (make, _) in RADIAL.items()},
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.4), 0.8) + kernels.Matern(1.5, 0.6),
    "product": lambda: kernels.Matern(2.5, 0.7) * kernels.RationalQuadratic(0.8, 0.9),
}


def uniform(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def normal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_far_row(X: Tensor, far: float) -> Tensor:
    """X and one more row, at this distance in every column."""
    return torch.cat([X, torch.full_like(X[:1], far)])


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["dense", "streamed"])
@pytest.mark.parametrize("name", KERNELS)
def test_predictions_do_not_depend_on_a_far_row(name: str, how: str, dtype: torch.dtype) -> None:
    X, Xs = uniform(60, 2, 0, dtype), uniform(3, 2, 1, dtype)
    y = (6.0 * X[:, 0]).sin() + X[:, 1]
    seed = torch.Generator().manual_seed(0)
    post = GP(KERNELS[name](), noise=0.1).condition(
        X, y, samples=4, features=32, solver="cg", tol=1e-3, generator=seed, compute=Compute(how)
    )
    questions: list[Callable[[Tensor], Tensor]] = [
        post.mean,
        lambda Z: post.variance(Z, method="solve"),
        lambda Z: post.variance(Z, method="samples"),
        lambda Z: post.variance(Z, method="neighbours"),
        lambda Z: post.paths(Z).T,
    ]
    expected = [question(Xs) for question in questions]
    # In float32 products of three and of four rows round differently, and small variances are differences of paths.
    tolerance = 5e-4 if dtype == torch.float32 else TOLERANCE[dtype]
    for far in DISTANCES:
        for question, value in zip(questions, expected, strict=True):
            assert relative_error(question(with_far_row(Xs, far))[:3], value) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("name", KERNELS)
def test_matrices_do_not_depend_on_a_far_row(name: str, d: int, dtype: torch.dtype) -> None:
    """In either set of inputs, and in both: the far row has its own right values too."""
    kernel, X, Z = KERNELS[name](), uniform(30, d, 0, dtype), uniform(20, d, 1, dtype)
    Z[4] = X[3]
    W = normal(31, 31, 2).to(dtype)
    W[-1] = W[:, -1] = 0.0
    with torch.no_grad():
        cross, gram = kernel(X, Z), kernel(X)
    (gradient,) = _gradients(kernel.contract(W[:-1, :-1].contiguous(), X), kernel)
    for far in DISTANCES:
        more_X, more_Z = with_far_row(X, far), with_far_row(Z, far)
        with torch.no_grad():
            whole = kernel(more_X, more_Z)
            pairs = [
                (whole[:-1, :-1], cross),
                (kernel(X, more_Z)[:, :-1], cross),
                (kernel(more_X)[:-1, :-1], gram),
                (whole[-1, -1:], kernel.diag(X[:1])),
            ]
        for found, expected in pairs:
            assert relative_error(found, expected) < TOLERANCE[dtype]
        (found,) = _gradients(kernel.contract(W, more_X), kernel)
        assert relative_error(found, gradient) < 10.0 * TOLERANCE[dtype]


def _gradients(value: Tensor, kernel: kernels.Kernel) -> tuple[Tensor]:
    return (torch.stack(torch.autograd.grad(value, [p for p in kernel.parameters() if p.ndim == 0])),)


def bursts(spacing: float, seed: int) -> Tensor:
    """Ten readings, about so many seconds apart, in each of twelve bursts over ten years: (120, 1), since 1970."""
    starts = 1.2e9 + TEN_YEARS * uniform(12, 1, seed)
    readings = spacing * (torch.arange(10) + 0.3 * uniform(12, 10, seed + 1))
    return (starts + readings).flatten().sort().values.unsqueeze(1)


LAYOUTS = [(spacing, length) for spacing in (1.0, 7.0, 30.0, 120.0) for length in (20.0, 60.0, 120.0, 300.0)]


@pytest.mark.parametrize(("spacing", "length"), LAYOUTS)
def test_bursts_of_readings_over_ten_years(spacing: float, length: float) -> None:
    """Their K, alone and beside five other columns, and its gradients in the length scales."""
    for columns in (1, 6):
        X = torch.cat([bursts(spacing, 0), normal(120, columns - 1, 2)], 1)
        scales = torch.tensor([length, *[2.0] * (columns - 1)], dtype=torch.float64)
        W = normal(120, 120, 3)
        for make, formula in RADIAL.values():
            kernel, own = make(scales), scales.clone().requires_grad_()
            expected = formula(X, X, own)
            (gradient,) = torch.autograd.grad((W * expected).sum(), own)
            K = kernel(X)
            assert float((K - expected).detach().abs().max()) < 1e-12
            assert float((kernel(X, X.clone()) - expected).detach().abs().max()) < 1e-12
            for value in ((W * K).sum(), (W * kernel(X, X.clone())).sum(), kernel.contract(W, X)):
                (found,) = torch.autograd.grad(value, kernel._lengthscale.raw)
                found = found / -torch.expm1(-scales)  # the slope of the softplus
                torch.testing.assert_close(found, gradient, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("spacing", "length"), [(7.0, 60.0), (30.0, 300.0)])
@pytest.mark.parametrize("name", ["SE", "Matern-1/2", "Matern-3/2"])
def test_the_posterior_of_bursts(name: str, spacing: float, length: float) -> None:
    make, formula = RADIAL[name]
    X = bursts(spacing, 0)
    y = (X[:, 0] / length).sin()
    Xs = X[::7] + 0.4 * spacing
    scale = torch.tensor(length, dtype=torch.float64)
    post = GP(make(scale), noise=0.1).condition(X, y, samples=0, solver="cg", tol=1e-8)
    mean, covariance = reference.posterior(lambda A, B: formula(A, B, scale), X, y, 0.1, Xs)
    torch.testing.assert_close(post.mean(Xs), mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(post.variance(Xs), covariance.diagonal(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_columns_of_any_width(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some columns reach 1e9 length scales, others a few; rows repeat, and are close to each other."""
    monkeypatch.setattr(distance, "_IN_CACHE", 9 * 30)
    generator = torch.Generator().manual_seed(seed)
    d = int(torch.randint(1, 31, (1,), generator=generator))
    name = list(RADIAL)[seed % len(RADIAL)]
    dtype = DTYPES[seed // len(RADIAL) % 2]
    scales = torch.empty(d, dtype=torch.float64).log_normal_(generator=generator) * d**0.5
    widths = 10.0 ** (9.0 * torch.rand(d, generator=generator, dtype=torch.float64) ** 3)
    clusters = widths * torch.randn(5, d, generator=generator, dtype=torch.float64)
    X = clusters[torch.randint(5, (40,), generator=generator)] + torch.randn(
        40, d, generator=generator, dtype=torch.float64
    )
    X = (X * scales).to(dtype)
    Z = torch.cat([X[:10], X[10:20] * (1.0 + 1e-7), X.flip(0)[:10] + 0.1])
    make, formula = RADIAL[name]
    kernel, own = make(scales), scales.clone().requires_grad_()
    expected = formula(X, Z, own)
    assert float((kernel(X, Z) - expected).detach().abs().max()) < (1e-9 if dtype == torch.float64 else 1e-6)
    W = normal(40, 30, seed).to(dtype)
    (gradient,) = torch.autograd.grad((W * expected).sum(), own)
    for value in (kernel.contract(W, X, Z), (W * kernel(X, Z)).sum()):
        (found,) = torch.autograd.grad(value, kernel._lengthscale.raw)
        assert float((found / -torch.expm1(-scales) - gradient).abs().max()) < 30.0 * TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["SE", "Matern-5/2", "RQ"])
def test_gradients_in_inputs_of_wide_columns(name: str) -> None:
    """First and second derivatives."""
    make, formula = RADIAL[name]
    scales = torch.tensor([30.0, 0.8, 1.2], dtype=torch.float64)
    Z = torch.cat([bursts(20.0, 0)[:40], normal(40, 2, 2)], 1)
    A, outer = Z[::5] + 0.2 * scales, normal(8, 40, 3)
    results = []
    for k in (lambda P: make(scales)(P, Z), lambda P: formula(P, Z, scales)):
        inputs = A.clone().requires_grad_()
        (first,) = torch.autograd.grad((outer * k(inputs)).sum(), inputs, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), inputs)
        results.append((first.detach(), second))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("d", [5, 12])
@pytest.mark.parametrize("nu", [0.3, 0.5, 0.8])
def test_close_points_of_rough_kernels(nu: float, d: int) -> None:
    """Pairs from 1e-9 length scales apart, where the square root shows every error of a squared distance."""
    X = 5.0 * normal(40, d, 0)
    Z = X + torch.logspace(-9, 0, 40, dtype=torch.float64).unsqueeze(1) * normal(40, d, 1)
    found = kernels.Matern(nu)(X, Z).detach()
    torch.testing.assert_close(found, reference.matern(X, Z, nu), rtol=0, atol=1e-10)


no_triton = missing(torch.device("cuda"))
fused = pytest.mark.skipif(bool(no_triton), reason=no_triton)


@fused
@pytest.mark.parametrize(("name", "d"), [*((name, 2) for name in KERNELS), ("SE", 6), ("Matern-1/2", 6), ("RQ", 6)])
def test_fused_values_do_not_depend_on_a_far_row(name: str, d: int) -> None:
    """Products, entries, predictions and their gradients, with the far row among the data and among new inputs."""
    kernel, X = KERNELS[name](), uniform(40, d, 0, torch.float32).to(DEVICE)
    V = normal(41, 2, 1).to(DEVICE, torch.float32)
    index = torch.arange(10, device=DEVICE)
    Xs = X[:5] + 0.1

    def values(A: Tensor, B: Tensor) -> list[Tensor]:
        H = KernelOperator(kernel, A, 0.3, Compute("fused"))
        inputs = B.clone().requires_grad_()
        mean = cross_product(kernel, inputs, A, V[: len(A)], backend="fused")
        (gradient,) = torch.autograd.grad(mean[:5].sum(), inputs)
        return [(H @ V[: len(A)])[:40], H.between(index, index), mean[:5], gradient[:5]]

    V[-1] = 0.0
    expected = values(X, Xs)
    for among_data, among_new in ((1e4, None), (None, 1e4), (1e12, 1e12)):
        A, B = (Y if far is None else with_far_row(Y, far) for Y, far in ((X, among_data), (Xs, among_new)))
        for found, value in zip(values(A, B), expected, strict=True):
            assert relative_error(found, value) < 1e-5


@fused
@pytest.mark.parametrize("d", [2, 6])
def test_fused_bursts(d: int) -> None:
    """float32 holds readings of float32 inputs that are 1e4 and 1e6 length scales apart; gradients too."""
    for far in (1e4, 1e6):
        X = normal(60, d, 0)
        X[:, 0] += far * (torch.arange(60) % 4)
        X = X.float().to(DEVICE)
        kernel, V = kernels.Matern(1.5, torch.ones(d)), normal(60, 2, 1).float().to(DEVICE)
        H = KernelOperator(kernel, X, 0.3, Compute("fused"))
        own = torch.ones(d, dtype=torch.float64, requires_grad=True)
        expected = reference.matern(X.cpu(), X.cpu(), 1.5, own)
        product = (expected @ V.cpu().double() + 0.09 * V.cpu()).detach()
        assert relative_error((H @ V).cpu(), product) < 1e-6
        (gradient,) = torch.autograd.grad((V.cpu().double() * (expected @ V.cpu().double())).sum(), own)
        (found,) = torch.autograd.grad(H.bilinear(V, V, symmetric=True), kernel._lengthscale.raw)
        assert relative_error(found / -math.expm1(-1.0), gradient) < 1e-5


@fused
@pytest.mark.parametrize("d", [2, 6])
def test_linear_kernels_say_that_one_input_is_out_of_scale(d: int) -> None:
    """It would set the scale of all values: up to a thousand times the others they keep their digits."""
    kernel, X = kernels.Linear(0.5) + kernels.Matern(1.5, 0.5), uniform(40, d, 0, torch.float32).to(DEVICE)
    V = normal(40, 2, 1).float().to(DEVICE)
    expected = kernel(X[:5].double(), X.double()).detach() @ V.double()
    found = cross_product(kernel, with_far_row(X[:5], 1e3), X, V, backend="fused")[:5]
    assert relative_error(found, expected) < 1e-5
    with pytest.raises(ValueError, match="times larger than most"):
        cross_product(kernel, with_far_row(X[:5], 1e5), X, V, backend="fused")
    assert "times larger than most" in backend.fallback_reason(kernel, with_far_row(X, 1e5))


def test_the_regressor_and_a_far_row() -> None:
    X = uniform(80, 2, 0).numpy()
    y = np.sin(6.0 * X[:, 0]) + X[:, 1]
    model = GPRegressor(steps=3).fit(X, y)
    Xs = uniform(3, 2, 1).numpy()
    mean, std = model.predict(Xs, return_std=True)
    for far in (1e4, 1e7, 1e12):
        found = model.predict(np.concatenate([Xs, np.full((1, 2), far)]), return_std=True)
        np.testing.assert_allclose(found[0][:3], mean, rtol=1e-8)
        np.testing.assert_allclose(found[1][:3], std, rtol=1e-8)


def test_the_command_line_and_a_far_row(tmp_path: Path, capsys: Capture) -> None:
    X = uniform(80, 2, 0)
    table = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "y": ((6.0 * X[:, 0]).sin() + X[:, 1]).tolist()}
    data, model = write(tmp_path / "data.csv", table), str(tmp_path / "model.pgp")
    assert main(["fit", str(data), "--target", "y", "--out", model, "--quiet", "--steps", "3", "--samples", "8"]) == 0
    capsys.readouterr()
    results = []
    for rows in ([0.2, 0.5, 0.9], [0.2, 0.5, 0.9, 1e7]):
        new = write(tmp_path / "new.csv", {"a": rows, "b": rows})
        assert main(["predict", model, str(new), "--quiet"]) == 0
        results.append(read(capsys.readouterr().out))
    for column in ("mean", "std"):
        np.testing.assert_allclose(numbers(results[1], column)[:3], numbers(results[0], column), rtol=1e-8)
    assert (numbers(results[1], "std")[:3] > 0.0).all()
