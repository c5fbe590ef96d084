"""The learning curves of Table 6.1, truncated as in the thesis, and the model that table_6_1.py fits to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from benchmarks.common.datasets import load
from pathgp import kernels

SETS = ("APSFailure", "MiniBooNE", "blood", "covertype", "higgs", "kr-vs-kp", "segment")
# softplus(0), the initial value of every variance and length scale in GPyTorch, and its least noise variance.
DEFAULT, LEAST = math.log(2.0), 1e-4


@dataclass(frozen=True)
class Curves:
    """Hyperparameters X (p, 7), log-epochs T (q, 1), all values Y (p, q), standardised; observed (p, q), boolean."""

    name: str
    X: Tensor
    T: Tensor
    Y: Tensor
    observed: Tensor

    @property
    def given(self) -> Tensor:
        """Y with NaN where nothing is observed."""
        return torch.where(self.observed, self.Y, torch.nan)

    def inputs(self, cells: Tensor) -> Tensor:
        """Hyperparameters and log-epochs of the chosen cells (p, q), a row for each: (m, 8)."""
        place, epoch = cells.nonzero(as_tuple=True)
        return torch.cat([self.X[place], self.T[epoch]], 1)

    def gpytorch_kernel(self) -> Any:
        """The kernel of `model` for GPyTorch, on the columns of `inputs`."""
        from gpytorch.kernels import RBFKernel, ScaleKernel

        d = self.X.shape[1]
        return ScaleKernel(RBFKernel(ard_num_dims=d, active_dims=tuple(range(d))) * RBFKernel(active_dims=(d,)))


def names() -> list[str]:
    """All data sets in the file, by their short names where the table has one."""
    full = [str(name) for name in load("lcbench").extra["names"]]
    return [next((short for short in SETS if name.startswith(short)), name) for name in full]


def curves(
    name: str, seed: int, rows: int | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> Curves:
    """One data set, cut at the places of the thesis's split ``seed``; with ``rows`` only the first so many curves."""
    data = load("lcbench")
    X = data.factors[0][:rows].astype(np.float64)
    Y = data.Y[names().index(name)][:rows].astype(np.float64)
    # The splits of the published experiments are those of NumPy's old generator with these seeds.
    (p, q), draw = Y.shape, np.random.RandomState(2025 + seed)
    observed = np.ones((p, q), dtype=bool)
    for row in draw.choice(p, int(0.9 * p), replace=False):
        observed[row, draw.randint(q) :] = False
    final = Y[observed[:, -1], -1]
    X = (X - X.mean(0)) / X.std(0, ddof=1)
    Y = (Y - final.mean()) / final.std(ddof=1)
    T = np.log(np.arange(1, q + 1))[:, None] / math.log(q + 1)
    X, T, Y = (torch.tensor(values, dtype=dtype, device=device) for values in (X, T, Y))
    return Curves(name, X, T, Y, torch.tensor(observed, device=device))


def model(data: Curves) -> pathgp.LatentKroneckerGP:
    """The model of the protocol at its start."""
    each = torch.full((data.X.shape[1],), DEFAULT, dtype=torch.float64)
    configurations = kernels.Scale(kernels.SquaredExponential(each), math.sqrt(DEFAULT))
    gp = pathgp.LatentKroneckerGP([configurations, kernels.SquaredExponential(DEFAULT)], noise=math.sqrt(DEFAULT))
    return gp.constrain("noise", bounds=(math.sqrt(LEAST), 1e6))
