"""`recompute` against a plain call and against torch's checkpoint: values, first and second derivatives, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pathgp.compute.recompute import recompute

WEIGHTS = torch.linspace(0.5, 2.0, 12, dtype=torch.float64).view(3, 4)


def by_torch(function, *arguments):
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


class Layer:
    """A function with a parameter that is not among its arguments, saved outputs, and a tuple of results."""

    def __init__(self) -> None:
        self.weights = WEIGHTS.clone().requires_grad_()
        self.calls = 0

    def __call__(self, X: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        self.calls += 1
        with torch.no_grad():
            shift = X.mean()
        A = torch.exp(torch.sin(X @ self.weights) - shift)
        root = torch.linalg.cholesky(A.T @ A + torch.eye(4, dtype=A.dtype))
        return factor * torch.cholesky_solve(A.T, root), A.square().sum(1)


def derivatives(call) -> list[Tensor]:
    layer, X = Layer(), torch.linspace(-1.0, 1.0, 15, dtype=torch.float64).view(5, 3).requires_grad_()
    first, second = call(layer, X, 2.0)
    total = (first.sin().sum() + second.log().sum()) ** 2
    gradients = torch.autograd.grad(total, [X, layer.weights], create_graph=True)
    curvature = torch.autograd.grad(sum(g.square().sum() for g in gradients), [X, layer.weights])
    return [first, second, *gradients, *curvature]


@pytest.mark.parametrize("other", [by_torch, lambda function, *arguments: function(*arguments)])
def test_values_and_two_derivatives_agree_to_the_last_bit(other) -> None:
    for value, expected in zip(derivatives(recompute), derivatives(other), strict=True):
        assert torch.equal(value, expected)


def test_the_function_is_called_once_more_per_backward_pass() -> None:
    layer, X = Layer(), torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    first, second = recompute(layer, X, 2.0)
    assert layer.calls == 1
    gradients = [torch.autograd.grad(first.sum() + second.sum(), X, retain_graph=True)[0] for _ in range(2)]
    assert layer.calls == 3
    assert torch.equal(*gradients)


def test_no_intermediate_tensor_is_stored_between_the_passes() -> None:
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    X = torch.ones(1, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        recompute(lambda x: x.expand(10_000).exp().sin().sum(), X)
    assert max(sizes, default=0) < 100


def test_without_gradients_it_is_a_plain_call() -> None:
    layer = Layer()
    with torch.no_grad():
        first, _ = recompute(layer, torch.ones(5, 3, dtype=torch.float64), 1.0)
    assert not first.requires_grad
    assert layer.calls == 1
