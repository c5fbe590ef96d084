"""Tables for regression by name: public sets and generated ones, split and standardised."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.common.datasets import load
from benchmarks.common.uci import Split
from pathgp import kernels
from pathgp.compute.random import normal, permutation
from pathgp.pathwise import PriorPaths

PUBLIC = (
    "pol",
    "elevators",
    "bike",
    "protein",
    "keggdirected",
    "kin40k",
    "sarcos_test",
    "houseelectric_first40k",
    "flights_30000",
    "kaust2a_1",
)
# A draw from a Gaussian process with this noise.
GENERATED = ("noise_1", "noise_0.1", "noise_0.01", "noise_0.001", "noise_0")
_GENERATED_ROWS, _GENERATED_COLUMNS = 10_000, 6


def table(name: str, rows: int | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Split:
    """A table split into training and test rows and standardised with the training rows.

    ``flights_N`` has N training rows and 10,000 test rows. Sets with official splits have the first one, the others a
    random tenth of the rows for the test. ``rows``: use this number of training rows, nested for different numbers.
    """
    if name.startswith("noise_"):
        X, y, X_test, y_test = _generate(float(name.removeprefix("noise_")))
    else:
        X, y, X_test, y_test = (torch.as_tensor(part, dtype=torch.float64) for part in _read(name))
    order = permutation(len(X), torch.Generator().manual_seed(1), X.device)[:rows]
    X, y = X[order], y[order]
    centre, scale = X.mean(0), X.std(0, correction=0)
    scale[scale == 0] = 1.0
    parts = ((X - centre) / scale, (y - y.mean()) / y.std(), (X_test - centre) / scale, (y_test - y.mean()) / y.std())
    return Split(name, *(part.to(device, dtype) for part in parts))


def _read(name: str) -> tuple[np.ndarray, ...]:
    """X, y, X_test, y_test of a public set, in its own units."""
    if name.startswith("flights_"):
        data, train = load("flights3m"), int(name.removeprefix("flights_"))
        order = np.random.default_rng(0).permutation(len(data.X))
        train_rows, test_rows = order[10_000 : 10_000 + train], order[:10_000]
    else:
        data = load(name)
        if data.test_mask is not None:
            return data.split(0)
        if "X_test" in data.extra:
            return data.X, data.y, data.extra["X_test"], data.extra["y_test"]
        order = np.random.default_rng(0).permutation(len(data.X))
        test_rows, train_rows = order[: len(order) // 10], order[len(order) // 10 :]
    assert data.y is not None
    return data.X[train_rows], data.y[train_rows], data.X[test_rows], data.y[test_rows]


def _generate(noise: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uniform inputs, and a draw of a Matern-3/2 process with length scales 0.5 to 2 and signal 1, plus noise."""
    generator = torch.Generator().manual_seed(0)
    n = _GENERATED_ROWS + _GENERATED_ROWS // 10
    X = torch.rand(n, _GENERATED_COLUMNS, generator=generator, dtype=torch.float64)
    kernel = kernels.Matern(1.5, torch.linspace(0.5, 2.0, _GENERATED_COLUMNS, dtype=torch.float64))
    with torch.no_grad():
        f = PriorPaths.draw(kernel.requires_grad_(False), 1, 4096, _GENERATED_COLUMNS, generator)(X)[0]
    y = f + noise * normal((n,), generator, torch.float64, X.device)
    return X[:_GENERATED_ROWS], y[:_GENERATED_ROWS], X[_GENERATED_ROWS:], y[_GENERATED_ROWS:]
