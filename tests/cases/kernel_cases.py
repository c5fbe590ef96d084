"""The kernels that tests of kernels, features and operators go through.

`KERNELS` are functions of two real columns. `MIXED` adds a column of task numbers and three of counts, for kernels that
take nothing else. A new kernel joins here, and by its textbook formula in tests/kernels/test_formulas.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathgp import kernels
from pathgp.kernels import Kernel

KERNELS: dict[str, Callable[[], Kernel]] = {
    "SE": lambda: kernels.SquaredExponential(torch.tensor([0.4, 0.9])),
    "Matern-0.3": lambda: kernels.Matern(0.3, torch.tensor([0.5, 1.5])),
    "Matern-1/2": lambda: kernels.Matern(0.5, 0.7),
    "Matern-1": lambda: kernels.Matern(1.0, torch.tensor([0.5, 1.5])),
    "Matern-3/2": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.5, 0.3])), 1.3),
    "Matern-2.2": lambda: kernels.Matern(2.2, torch.tensor([0.5, 1.5])),
    "Matern-5/2": lambda: kernels.Scale(kernels.Matern(2.5, 0.8), 0.2),
    "learned Matern": lambda: kernels.LearnedMatern(1.7, torch.tensor([0.5, 1.5])),
    "learned rough": lambda: kernels.LearnedMatern(0.6, 0.8),
    "RQ": lambda: kernels.RationalQuadratic(0.9, 0.6),
    "RQ, almost SE": lambda: kernels.RationalQuadratic(200.0, 0.6),
    "Periodic": lambda: kernels.Periodic(torch.tensor([0.7, 1.9]), 1.1),
    "Linear": lambda: kernels.Linear(torch.tensor([0.5, 1.5]), bias=0.3),
    "sum": lambda: kernels.Scale(kernels.SquaredExponential(0.4), 0.8) + kernels.Linear(0.5),
    "product": lambda: kernels.Periodic(0.7, 1.1) * kernels.RationalQuadratic(0.9, 0.6),
    "reordered": lambda: kernels.Scale(kernels.Matern(1.5, torch.tensor([0.5, 0.3])), 0.4, active_dims=[1, 0]),
    "Gneiting": lambda: kernels.Gneiting(kernels.Matern(2.5, 0.7), 1.3, alpha=0.7, beta=0.6, decay=0.4),
    # Degrees of latitude and longitude.
    "Sphere": lambda: kernels.Scale(kernels.Sphere(kernels.Matern(2.5, 0.02)), 1.2),
    "disjoint": lambda: kernels.Matern(2.5, 0.4, active_dims=[1]) * kernels.Matern(0.5, 0.9, active_dims=[0]),
    "nested": lambda: kernels.Scale(
        kernels.Scale(kernels.Scale(kernels.Matern(1.5, 0.5), 1.2) * kernels.Linear(0.7, active_dims=[1]), 0.8)
        + kernels.Scale(kernels.Scale(kernels.SquaredExponential(1.5), 0.6), 0.9) * kernels.Matern(0.5, 2.0),
        1.1,
    ),
}
# Kernels without fused products: Matern of an order other than 1/2, 3/2 and 5/2, and Gneiting.
GENERAL = ("Matern-0.3", "Matern-1", "Matern-2.2", "learned Matern", "learned rough", "Gneiting")
# Not differentiable at equal points.
ROUGH = ("Matern-0.3", "Matern-1/2", "Matern-1", "learned rough", "Gneiting", "disjoint", "nested")

# Columns of the inputs of `MIXED`.
REAL, TASK, COUNTS = [0, 1], [2], [3, 4, 5]


def _matern() -> Kernel:
    return kernels.Scale(kernels.Matern(1.5, torch.tensor([0.5, 2.0]), active_dims=REAL), 1.3)


def _periodic() -> Kernel:
    return kernels.Periodic(1.7, 0.9, active_dims=[0])


def _rational() -> Kernel:
    return kernels.RationalQuadratic(0.8, active_dims=REAL)


def _task() -> Kernel:
    return kernels.Task(3, 2, active_dims=TASK)


def _tanimoto() -> Kernel:
    return kernels.Tanimoto(active_dims=COUNTS)


MIXED: dict[str, Callable[[], Kernel]] = {
    "matern": _matern,
    "cauchy": lambda: kernels.Matern(0.5, 0.1, active_dims=REAL),
    "rational": _rational,
    "periodic": _periodic,
    "periodic matern": lambda: _periodic() * _matern(),
    "tanimoto": _tanimoto,
    "tanimoto matern": lambda: _tanimoto() * _matern(),
    "tasks": lambda: _matern() * _task(),
    "mixed sum": lambda: (
        _matern() + _periodic() + _task() * _rational() + kernels.Linear(0.5, bias=1.0, active_dims=REAL)
    ),
    "tanimoto tasks": lambda: kernels.Scale(_tanimoto() * _task(), 0.5),
}


def mixed_inputs(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Inputs of the kernels in `MIXED` (n, 6)."""
    generator = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(n, 2, generator=generator),
        torch.randint(0, 3, (n, 1), generator=generator),
        torch.randint(0, 4, (n, 3), generator=generator),
    ]
    return torch.cat(parts, 1).to(dtype)
