"""Real data for the benchmarks: looked for in $PATHGP_DATA, then beside the repository in ../shared/data."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pathgp import kernels
from pathgp.compute.random import normal
from pathgp.operators import KernelOperator
from pathgp.pathwise import PriorPaths

UCI = ("pol", "elevators", "bike", "protein", "keggdirected")


def folder() -> Path:
    """The data folder; ends the program with advice where there is none."""
    given = os.environ.get("PATHGP_DATA")
    path = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not (path / "uci_hyperparameters.json").exists():
        raise SystemExit(f"no data in {path}: set PATHGP_DATA to the folder that holds pol.npz and the other sets")
    return path


@dataclass(frozen=True)
class Regression:
    """One split of a data set, standardised with its training rows, and the authors' hyperparameters."""

    name: str
    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    noise: float
    signal: float
    lengthscale: Tensor

    def kernel(self) -> kernels.Kernel:
        """The Matern-3/2 kernel of the thesis's inference tables."""
        return kernels.Scale(kernels.Matern(1.5, self.lengthscale), self.signal)


def uci(
    name: str, split: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", rows: int | None = None
) -> Regression:
    """One official split; with ``rows`` only the first so many training rows."""
    path = folder()
    table = np.load(path / f"{name}.npz")
    chosen = json.loads((path / "uci_hyperparameters.json").read_text())[name][str(split)]
    X, y = table["X"].astype(np.float64), table["y"].astype(np.float64)
    test = table["test_mask"][:, split]
    scale = X[~test].std(0)
    X = (X - X[~test].mean(0)) / np.where(scale > 0, scale, 1.0)
    y = (y - y[~test].mean()) / y[~test].std()

    def tensor(values: np.ndarray) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Regression(
        name=name,
        X=tensor(X[~test][:rows]),
        y=tensor(y[~test][:rows]),
        X_test=tensor(X[test]),
        y_test=tensor(y[test]),
        noise=float(chosen["noise"]),
        signal=float(chosen["signal"]),
        lengthscale=torch.tensor(chosen["lengthscale"], dtype=torch.float64),
    )


def system(data: Regression, samples: int = 64) -> tuple[KernelOperator, Tensor]:
    """H and the right-hand sides of the solver benchmarks: y, and prior draws plus noise."""
    kernel = data.kernel().requires_grad_(False).to(data.X.device)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = PriorPaths.draw(kernel, samples, 512, data.X.shape[1], generator)(data.X).T
    noise = data.noise * normal(tuple(draws.shape), generator, data.X.dtype, data.X.device)
    return KernelOperator(kernel, data.X, data.noise), torch.cat([data.y.unsqueeze(1), draws + noise], 1)
