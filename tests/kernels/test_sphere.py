"""Kernels of latitude and longitude."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels
from pathgp.kernels.sphere import Embedding
from pathgp.learning.bounds import DefaultBounds
from pathgp.operators import KernelOperator


def places(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Latitude, longitude, and a third column."""
    g = torch.Generator().manual_seed(0)
    lat = torch.rand(n, generator=g, dtype=torch.float64).mul(2).sub(1).asin().rad2deg()
    return torch.stack([lat, 360 * torch.rand(n, generator=g).double(), torch.randn(n, generator=g).double()], 1).to(
        dtype
    )


def kernel() -> kernels.Kernel:
    return kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.3), active_dims=[0, 1]), 1.2)


def test_longitudes_wrap_and_poles_are_points() -> None:
    k = kernels.Sphere(kernels.Matern(0.5, 0.1))
    X = torch.tensor([[12.0, -170.0], [90.0, 10.0], [-90.0, 40.0]], dtype=torch.float64)
    Z = torch.tensor([[12.0, 190.0], [90.0, 250.0], [-90.0, -3.0]], dtype=torch.float64)
    assert torch.allclose(k(X, Z).diagonal(), torch.ones(3, dtype=torch.float64), atol=1e-13)


def test_distance_is_the_chord() -> None:
    k = kernels.Sphere(kernels.SquaredExponential(1.0))
    quarter = torch.tensor([[0.0, 0.0], [0.0, 90.0]], dtype=torch.float64)
    assert float(k(quarter).detach()[0, 1]) == pytest.approx(math.exp(-1.0), abs=1e-14)


def test_all_kernels_are_positive_semi_definite() -> None:
    X = places(300)[:, :2]
    for inner in (kernels.Matern(0.5, 2.0), kernels.Matern(2.5, 1.0), kernels.SquaredExponential(1.5)):
        assert float(torch.linalg.eigvalsh(kernels.Sphere(inner)(X).detach()).min()) >= -1e-10


@pytest.mark.parametrize(
    ("X", "message"),
    [([[0.0, 0.0], [90.5, 0.0]], "90.5 in row 1"), ([[-91.0, 0.0]], "-91 in row 0"), ([[1.0, 2.0, 3.0]], "has 3")],
)
def test_bad_inputs(X: list[list[float]], message: str) -> None:
    k, inputs = kernels.Sphere(kernels.Matern(1.5)), torch.tensor(X, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        k(inputs)
    with pytest.raises(ValueError, match=r"row|two columns"):
        pathgp.GP(k, 0.1).condition(inputs, torch.ones(len(inputs), dtype=torch.float64))


def test_bad_kernels() -> None:
    with pytest.raises(TypeError, match="go around"):
        kernels.Sphere(kernels.Scale(kernels.Matern()))
    with pytest.raises(ValueError, match="one length scale"):
        kernels.Sphere(kernels.Matern(1.5, torch.ones(3)))
    with pytest.raises(ValueError, match=r"active_dims=\[0\]"):
        kernels.Sphere(kernels.Matern(), active_dims=[0])


def test_embedded_kernel_shares_parameters_and_values() -> None:
    k = kernels.Scale(
        kernels.Sum(
            kernels.Sphere(kernels.Matern(1.5, 0.3), active_dims=[1, 0]) * kernels.Matern(0.5, active_dims=[2]),
            kernels.Scale(kernels.Sphere(kernels.SquaredExponential(0.7), active_dims=[1, 0]), 0.4),
            kernels.Linear(0.1),
            active_dims=[1, 0, 2],
        ),
        1.3,
    )
    X = places(20)
    embedding = Embedding(k, 3)
    assert [id(p) for p in embedding.kernel.parameters()] == [id(p) for p in k.parameters()]
    assert embedding(X).shape == (20, 9) == (20, embedding.dim)
    # Degrees that only spheres see are left out.
    assert Embedding(k.kernel.kernels[0], 3).dim == 4
    assert torch.allclose(embedding.kernel(embedding(X)), k(X), atol=1e-12)
    plain = kernels.Matern(1.5)
    assert Embedding(plain, 2).kernel is plain


def test_geometry_is_found_once() -> None:
    X, k = places(300)[:, :2], kernels.Sphere(kernels.Matern(1.5, 0.3))
    first = KernelOperator(k, X, 0.1)
    assert KernelOperator(k, X, 0.2, reuse=first)._inputs is first._inputs
    assert KernelOperator(k, X.clone(), 0.2, reuse=first)._inputs is not first._inputs


def test_field_products() -> None:
    X, V = places(400)[:, :2], torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H = pathgp.operators.FieldOperator(kernels.Scale(kernels.Sphere(kernels.Matern(1.5, 0.3)), 1.2), X, 0.1)
    expected = KernelOperator(H.kernel, X, 0.1, pathgp.Compute("dense")) @ V
    assert float((H @ V - expected).norm() / expected.norm()) <= 1e-4


def test_operators_see_three_columns() -> None:
    X = places(200)[:, :2]
    H = KernelOperator(kernels.Sphere(kernels.Matern(1.5, 0.3)), X, 0.1)
    assert H.stationary_dim == 3
    solution = pathgp.solvers.CG(preconditioner=pathgp.solvers.Vecchia(20)).solve(H, X[:, :1], tol=1e-8)
    assert solution.converged
    assert torch.allclose(H @ solution.x, X[:, :1], atol=1e-4)


def test_gradient_of_the_likelihood() -> None:
    gp, X = pathgp.GP(kernel(), 0.3), places(50)
    y = torch.sin(X[:, 0] / 20) + torch.cos(X[:, 1] / 30)
    H = KernelOperator(gp.kernel, X, 0.3, pathgp.Compute("streamed"))
    L = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parameters = list(gp.kernel.parameters())
    found = torch.autograd.grad(H.bilinear(L, L), parameters)
    expected = torch.autograd.grad((L * (gp.kernel(X) @ L)).sum(), parameters)
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(found, expected, strict=True))
    limits = DefaultBounds(gp, gp.prepare_data(X, y))
    assert gp.kernel.kernel.kernel._lengthscale.bounds[1] < 1e5
    limits.release()


def test_fit_in_standardised_units_leaves_degrees_alone() -> None:
    X = places(300)
    y = 5 + 100 * torch.sin(2 * torch.deg2rad(X[:, 0])) * torch.cos(torch.deg2rad(X[:, 1]))
    gp = pathgp.GP(kernel(), 0.1, standardise=True)
    gp.fit(X[:250], y[:250], steps=15, generator=torch.Generator().manual_seed(0))
    post = gp.posterior
    assert post.scaling.scale[:2].tolist() == [1.0, 1.0]
    assert float((post.mean(X[250:]) - y[250:]).square().mean().sqrt()) < 5.0
    around = torch.tensor([[0.0, 0.0, 0.0], [360.0, 0.0, 0.0]], dtype=torch.float64)[:, [1, 0, 2]]
    assert torch.allclose(post.paths(around)[:, 0], post.paths(around)[:, 1], atol=1e-8)


def test_features_without_a_given_number_of_columns() -> None:
    X = places(10)
    phi = kernel().features(64, generator=torch.Generator().manual_seed(0))
    assert phi(X).shape == (10, 64)
    alone = kernels.Sphere(kernels.Matern()).features(64, generator=torch.Generator().manual_seed(0))
    assert alone(X[:, :2]).shape == (10, 64)
    with pytest.raises(ValueError, match="give dim"):
        (kernel() + kernels.Matern()).features(64)
