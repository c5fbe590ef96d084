"""Parameters, reprs, composition, errors."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pathgp
from pathgp import kernels


def test_parameters_are_float64_and_can_be_set() -> None:
    k = kernels.Scale(kernels.RationalQuadratic(2.0, torch.ones(2)), 1.5)
    inner = k.kernel
    assert isinstance(inner, kernels.RationalQuadratic)
    assert all(p.dtype == torch.float64 for p in k.parameters())
    k.signal = 0.3
    inner.alpha = 5.0
    inner.lengthscale = torch.tensor([1e-6, 1e6])
    assert k.signal.item() == pytest.approx(0.3, rel=1e-14)
    assert inner.alpha.item() == pytest.approx(5.0, rel=1e-14)
    torch.testing.assert_close(inner.lengthscale.detach(), torch.tensor([1e-6, 1e6]).double(), rtol=1e-9, atol=0)
    inner.lengthscale = 2.0
    assert inner.lengthscale.tolist() == pytest.approx([2.0, 2.0])
    periodic = kernels.Periodic()
    periodic.period, periodic.lengthscale = 3.0, 0.5
    assert [periodic.period.item(), periodic.lengthscale.item()] == pytest.approx([3.0, 0.5])
    linear = kernels.Linear(bias=1.0)
    linear.scale, linear.bias = 2.0, 0.1
    assert [linear.scale.item(), linear.bias.item()] == pytest.approx([2.0, 0.1])
    task = kernels.Task(2)
    task.scale = 3.0
    assert task.scale.tolist() == pytest.approx([3.0, 3.0])


def test_values_of_a_part_are_not_set_on_the_whole() -> None:
    """torch would keep them as a new attribute, which nothing reads."""
    k = kernels.Scale(kernels.Matern(1.5)) + kernels.Linear()
    gp = pathgp.GP(k)
    for module, name, where in (
        (k.parts[0], "lengthscale", ".kernel.lengthscale = "),
        (k, "signal", ".kernels[0].signal = "),
        (gp, "lengthscale", ".kernel.kernels[0].kernel.lengthscale = "),
        (pathgp.LatentKroneckerGP([kernels.Periodic(), None]), "period", ".kernels[0].period = "),
    ):
        with pytest.raises(AttributeError, match=f"has no {name} of its own: set that of its part, {re.escape(where)}"):
            setattr(module, name, 2.0)
    assert "lengthscale=1)" in repr(gp)
    k.label = gp.label = "others may be set"


def test_an_unfinished_kernel_says_what_it_lacks() -> None:
    X = torch.rand(3, 2)
    with pytest.raises(NotImplementedError, match=r"Kernel does not define its matrix: _matrix\(X, Z\), \(n, m\)"):
        kernels.Kernel()(X)
    with pytest.raises(NotImplementedError, match=r"Kernel does not define its diagonal: _diagonal\(X\), \(n,\)"):
        kernels.Kernel().diag(X)


def test_large_values_survive_the_softplus() -> None:
    for value in (1e-12, 1e-3, 1.0, 30.0, 1e6):
        assert kernels.Matern(lengthscale=value).lengthscale.item() == pytest.approx(value, rel=1e-12)


def test_reprs() -> None:
    matern = kernels.Matern(nu=1.5, lengthscale=torch.tensor([0.5, 1.0, 2.0]))
    assert repr(kernels.Scale(matern, 1.3)) == "1.3^2 * Matern(nu=1.5, lengthscale=[0.5, 1, 2])"
    se = kernels.SquaredExponential(0.25, active_dims=[0, 2])
    assert repr((matern + se) * kernels.Tanimoto()) == (
        "(Matern(nu=1.5, lengthscale=[0.5, 1, 2]) + SquaredExponential(lengthscale=0.25, active_dims=[0, 2]))"
        " * Tanimoto()"
    )
    assert repr(kernels.Sum(se, active_dims=[0, 1, 2])).endswith("[active_dims=[0, 1, 2]]")
    assert repr(kernels.Linear(torch.ones(9))) == "Linear(scale=[1, 1, 1, ..., 1, 1])"
    assert repr(kernels.Periodic(2.0, 0.5)) == "Periodic(period=2, lengthscale=0.5)"
    assert repr(kernels.RationalQuadratic(3.0)) == "RationalQuadratic(alpha=3, lengthscale=1)"
    assert (
        repr(kernels.Task(2, active_dims=[4])) == "Task(num_tasks=2, rank=1, scale=[0.7071, 0.7071], active_dims=[4])"
    )


def test_sums_and_products_are_flat() -> None:
    a, b, c = kernels.SquaredExponential(), kernels.Matern(), kernels.Linear()
    assert (a + b + c).parts == [a, b, c]
    assert (a * b * c).parts == [a, b, c]
    assert (a + (b + c)).parts == [a, b, c]
    assert len((kernels.Sum(a, b, active_dims=[0]) + c).parts) == 2


def test_active_dims_nest() -> None:
    X = torch.randn(5, 4, dtype=torch.float64)
    inner = kernels.SquaredExponential(torch.tensor([1.0, 2.0]), active_dims=[2, 0])
    outer = kernels.Scale(inner, active_dims=[3, 1, 0])
    expected = kernels.SquaredExponential(torch.tensor([1.0, 2.0]))(X[:, [0, 3]])
    torch.testing.assert_close(outer(X), expected)


def test_state_dict_round_trip() -> None:
    k = kernels.Scale(kernels.Matern(2.5, torch.tensor([0.3, 2.0])), 1.7) + kernels.Task(3, active_dims=[0])
    other = kernels.Scale(kernels.Matern(2.5, torch.ones(2)), 1.0) + kernels.Task(3, active_dims=[0])
    other.load_state_dict(copy.deepcopy(k.state_dict()))
    assert repr(other) == repr(k)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: kernels.Matern(nu=0.0), "nu must lie in"),
        (lambda: kernels.Matern(nu=100.0), "SquaredExponential is the limit"),
        (lambda: kernels.Matern(nu=float("nan")), "nu must lie in"),
        (lambda: kernels.SquaredExponential(-1.0), "lengthscale must be positive"),
        (lambda: kernels.SquaredExponential(float("inf")), "lengthscale must be positive and finite"),
        (lambda: kernels.SquaredExponential(torch.ones(2, 2)), "one-dimensional"),
        (lambda: kernels.SquaredExponential(active_dims=[0, 0]), "active_dims must be distinct"),
        (lambda: kernels.SquaredExponential(active_dims=[-1]), "active_dims must be distinct"),
        (lambda: kernels.RationalQuadratic(torch.ones(2)), "alpha must be one number"),
        (lambda: kernels.Scale(kernels.Matern(), torch.ones(2)), "signal must be one number"),
        (lambda: kernels.Linear(bias=torch.ones(2)), "bias must be one number"),
        (lambda: kernels.Task(3, factor=torch.ones(2, 1)), "factor must have shape"),
        (lambda: kernels.Task(3, scale=torch.ones(2)), "scale must be one number or one per task"),
        (lambda: kernels.Task(0), "num_tasks and rank"),
        (lambda: kernels.Task(2, active_dims=[0, 1]), "one column of task numbers"),
        (lambda: kernels.Sum(), "at least one kernel"),
    ],
)
def test_bad_settings(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("kernel", "X", "message"),
    [
        (kernels.Matern(), torch.ones(3), "two dimensions"),
        (kernels.Matern(active_dims=[3]), torch.ones(3, 2), "acts on column 3"),
        (kernels.Matern(lengthscale=torch.ones(3)), torch.ones(3, 2), "lengthscale has 3 entries"),
        (kernels.Periodic(torch.ones(3)), torch.ones(3, 2), "period has 3 entries"),
        (kernels.Linear(torch.ones(3)), torch.ones(3, 2), "scale has 3 entries"),
        (kernels.Tanimoto(), torch.tensor([[1.0, 2.0], [0.0, -3.0]]), "X is -3 in row 1, column 1"),
        (kernels.Tanimoto(), torch.tensor([[1.0, torch.nan]]), "X is nan in row 0, column 1"),
        (kernels.Task(3), torch.tensor([[0.0], [3.0]]), "task numbers are 0..2, but X has 3 in row 1"),
        (kernels.Task(3), torch.tensor([[0.0], [0.5]]), "X has 0.5 in row 1"),
        (kernels.Task(3), torch.tensor([[torch.nan]]), "X has nan in row 0"),
        (kernels.Task(3), torch.tensor([[-1]]), "X has -1 in row 0"),
        (kernels.Task(3), torch.zeros(2, 2), "name it in active_dims"),
    ],
)
def test_bad_inputs(kernel: kernels.Kernel, X: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(X)
    with pytest.raises(ValueError, match=message):
        (kernel + kernel)(X)


def test_bad_types() -> None:
    X = torch.ones(2, 2)
    with pytest.raises(TypeError, match="must be a torch"):
        kernels.Matern()([[1.0]])
    with pytest.raises(TypeError, match="convert one of them"):
        kernels.Matern()(X, X.double())
    with pytest.raises(ValueError, match="they must agree"):
        kernels.Matern()(X, X[:, :1])
    with pytest.raises(TypeError, match="combines kernels"):
        kernels.Sum(kernels.Matern(), 3.0)
    with pytest.raises(TypeError):
        kernels.Matern() + 3.0
    with pytest.raises(ValueError, match="built without an intercept"):
        kernels.Linear().bias = 1.0


@pytest.mark.parametrize("combine", [lambda k: 2.0 * k, lambda k: k * 2.0, lambda k: k + 1.0], ids=["2k", "k2", "k+1"])
def test_numbers_are_refused_with_advice(combine: Callable[[kernels.Kernel], object]) -> None:
    with pytest.raises(TypeError, match=r"use kernels\.Scale"):
        combine(kernels.SquaredExponential())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "kernel",
    [kernels.SquaredExponential(0.1), kernels.Periodic(1e4, 1e-3), *(kernels.Matern(v, 0.1) for v in (0.5, 1.5, 2.5))],
    ids=str,
)
def test_no_entry_is_subnormal(kernel: kernels.Kernel, dtype: torch.dtype) -> None:
    X = torch.linspace(0, 90, 2001, dtype=dtype).unsqueeze(1)
    tiny = torch.finfo(dtype).tiny
    far = kernel(X[:1], X)[0]
    assert far.min() < 1e6 * 2**16 * tiny
    assert not bool(((far != 0) & (far.abs() < tiny)).any())
    gradient = torch.autograd.grad(kernel(X[:1], X.requires_grad_()).sum(), X)[0]
    assert not bool(((gradient != 0) & (gradient.abs() < tiny)).any())


def test_tasks_start_from_a_covariance() -> None:
    """Variances agree with it, half of it is shared; fixed parameters and an empty covariance change nothing."""
    C = torch.tensor([[4.0, -1.8, 0.0], [-1.8, 1.0, 0.2], [0.0, 0.2, 0.25]], dtype=torch.float64)
    task = kernels.Task(3, rank=3)
    task.start_from(C)
    shared = 0.5 * (C - torch.diag(C.diagonal()))
    torch.testing.assert_close(task.covariance, shared + torch.diag(C.diagonal()))
    fixed = kernels.Task(3).requires_grad_(False)
    before = fixed.covariance
    fixed.start_from(C)
    torch.testing.assert_close(fixed.covariance, before)
    task.start_from(torch.zeros_like(C))
    assert bool((task.covariance.diagonal() > 0).all())
