"""A fit to compare with: data from a known model, and the optimum of the reference's likelihood by SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

import pathgp
import reference
from learning_cases import SCALED_MATERN, Values
from pathgp.kernels import Matern, Scale
from pathgp.kernels.parameters import Positive

TRUTH = {"lengthscale": torch.tensor([0.3, 0.7]), "signal": torch.tensor(1.2), "noise": torch.tensor(0.2)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(noise: float = 0.5, **options: Any) -> pathgp.GP:
    """The model behind the data, at other hyperparameters."""
    kernel = Scale(Matern(1.5, lengthscale=torch.tensor([0.6, 0.6], dtype=torch.float64)), 1.0)
    return pathgp.GP(kernel, noise, **options)


def drawn(n: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    """X (n, 2) in the unit square, and y (n,) from the model at TRUTH."""
    generator = seeded(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    H = reference.system(SCALED_MATERN.covariance(TRUTH), X, TRUTH["noise"])
    return X, torch.linalg.cholesky(H) @ torch.randn(n, generator=generator, dtype=torch.float64)


X, Y = drawn()
XS = torch.rand(12, 2, generator=seeded(9), dtype=torch.float64)


def optimum(
    function: Callable[[Values], Tensor],
    start: Values,
    fixed: tuple[str, ...] = (),
    bounds: dict[str, tuple[float, float]] | None = None,
) -> Values:
    """The maximum of a function of hyperparameters by scipy; all but those of the mean as logarithms."""
    names = [name for name in start if name not in fixed]
    free = {name for name in names if name.startswith("mean")}
    sizes = [start[name].numel() for name in names]

    def values(flat: Tensor) -> Values:
        parts = zip(names, flat.split(sizes), strict=True)
        return start | {k: (v if k in free else v.exp()).view(start[k].shape) for k, v in parts}

    def loss(numbers: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
        flat = torch.tensor(numbers, requires_grad=True)
        value = -function(values(flat))
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    begin = torch.cat([(start[k] if k in free else start[k].log()).flatten() for k in names])
    limits = [(bounds or {}).get(k, (0.0, math.inf)) for k, size in zip(names, sizes, strict=True) for _ in range(size)]
    logs = [(None, None) if limit == (0.0, math.inf) else tuple(map(math.log, limit)) for limit in limits]
    options = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-9}
    found = optimize.minimize(loss, begin.numpy(), jac=True, method="L-BFGS-B", bounds=logs, options=options)
    return values(torch.from_numpy(found.x))


def likelihood(theta: Values) -> Tensor:
    return SCALED_MATERN.log_likelihood(theta, X, Y)


def close(found: Values, expected: Values, rel: float) -> bool:
    assert found.keys() == expected.keys()
    return all(torch.allclose(found[name], expected[name], rtol=rel, atol=0.0) for name in expected)


def gp_noise(value: float) -> float:
    """A noise as the model stores it."""
    return Positive(value, "noise").value.item()
