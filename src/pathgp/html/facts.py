"""Facts about a posterior that the sections of a page show: names, data in the caller's units, the kernel in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp import kernels
from pathgp.html.numbers import number
from pathgp.kernels import Kernel
from pathgp.kernels.expression import Columns, fold, leaves
from pathgp.kernels.stationary import Stationary
from pathgp.posterior.grid import GridPosterior
from pathgp.posterior.table import Posterior

# Rows for medians, quantiles and marks on axes.
_MOST_ROWS = 100_000
# An input with at most this number of distinct values is shown at these values.
_MOST_LEVELS = 12
_MATERN = {
    0.5: "Matérn 1/2 kernel (continuous but rough functions)",
    1.5: "Matérn 3/2 kernel (functions with one derivative)",
    2.5: "Matérn 5/2 kernel (functions with two derivatives)",
}


@dataclass(frozen=True)
class Facts:
    """A posterior of rows with the names of its inputs and of its target."""

    post: Posterior
    names: list[str]
    target: str

    @property
    def columns(self) -> int:
        return self.post.report.columns

    @property
    def has_targets(self) -> bool:
        return self.post.has_targets

    @cached_property
    def rows(self) -> NDArray[Any]:
        """Numbers of the rows in `X`: all, or a random subset."""
        return random_subset(self.post.report.rows, _MOST_ROWS)

    @cached_property
    def X(self) -> NDArray[np.float64]:
        """Training inputs of `rows` in the caller's units."""
        rows = torch.from_numpy(self.rows).to(self.post.system.X.device)
        return self.post.training_inputs(rows).cpu().numpy()

    @cached_property
    def medians(self) -> NDArray[np.float64]:
        """The lower median of every input, which occurs in the data."""
        return np.quantile(self.X, 0.5, axis=0, method="lower")

    def targets(self) -> NDArray[np.float64]:
        """All training targets in the caller's units."""
        return self.post.training_targets().cpu().numpy()

    def levels(self, column: int) -> NDArray[np.float64] | None:
        """The distinct values of an input with few of them, or of task numbers; None for other inputs."""
        values = np.unique(self.X[:, column])
        is_discrete = len(values) <= _MOST_LEVELS and 4 * len(values) <= len(self.X)
        parts = leaves(self.post.model.kernel, range(self.columns))
        is_task = any(isinstance(kernel, kernels.Task) and column in inputs for kernel, inputs in parts)
        return values if is_discrete or is_task else None

    def inputs_along(self, column: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs (m, d): ``values`` in one column, the medians in the others."""
        Xs = np.tile(self.medians, (len(values), 1))
        Xs[:, column] = values
        return Xs


def random_subset(rows: int, most: int) -> NDArray[Any]:
    """Sorted numbers of at most ``most`` random rows; the same ones at every call."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def to_numpy(values: Any) -> NDArray[np.float64]:
    """Convert a tensor or an array to float64."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def read_names(names: Sequence[str] | None, size: int, what: str, prefix: str) -> list[str]:
    """Check that there is one name per input or side (``what``); without names number them."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list with one name per {what}, got the string {names!r}")
    texts = [f"{prefix}{i}" for i in range(size)] if names is None else [str(name) for name in names]
    if len(texts) != size:
        raise ValueError(f"names has {len(texts)} entries for {size} {what}s: give one name per {what}")
    return texts


def join_names(names: Sequence[str], most: int = 6) -> str:
    """Join names in a sentence, at most ``most`` of them.

    >>> join_names(["a", "b", "c"]), join_names(["a", "b", "c", "d"], most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    shown = list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def signal_unit(sides: Sequence[Kernel], unit: float) -> float | None:
    """``unit``, which converts a signal scale to the units of y; None unless there is exactly one in every product."""

    def num_factors(node: Kernel, inputs: Columns, parts: Iterator[int]) -> int:
        counts = [*parts, 0]
        return isinstance(node, kernels.Scale) + (max(counts) if isinstance(node, kernels.Sum) else sum(counts))

    return unit if sum(fold(kernel, num_factors) for kernel in sides) == 1 else None


def noise_in_words(post: Posterior | GridPosterior, target: str, unit: float | None) -> str:
    """The noise and its units in a sentence; ``unit``: see `signal_unit`."""
    noise = f"The noise has standard deviation {number(post.noise_std)}"
    if post.system.deviation.ndim:
        noise += ", on top of the known noise of every observation"
    return f"{noise}, in the units of {target}." if unit is None else f"{noise}; both are in the units of {target}."


def kernel_in_words(kernel: Kernel, names: Sequence[str], unit: float | None) -> str:
    """Describe a kernel and its values; ``names``: of the columns it is given.  unit: see `signal_unit`."""

    def describe(node: Kernel, inputs: Columns, parts: Iterator[str]) -> str:
        if isinstance(node, kernels.Scale):
            return f"{next(parts)}, standard deviation {number((unit or 1.0) * float(node.signal.detach()))}"
        if isinstance(node, (kernels.Sum, kernels.Product)):
            return ("a sum of " if isinstance(node, kernels.Sum) else "a product of ") + "; and ".join(parts)
        words = _leaf(node) + ("" if node.active_dims is None else f" of {join_names(inputs or ())}")
        if not isinstance(node, (Stationary, kernels.Periodic)):
            return words
        if node.lengthscale.numel() > 1:
            return f"{words}, length scales {_range(node.lengthscale)}, one per input"
        return f"{words}, length scale {_range(node.lengthscale)}"

    return fold(kernel, describe, names)


def _leaf(kernel: Kernel) -> str:
    match kernel:
        case kernels.Matern():
            return _MATERN.get(kernel.nu, f"Matérn {kernel.nu:g} kernel")
        case kernels.LearnedMatern():
            return f"Matérn kernel of learned smoothness (ν = {number(float(kernel.nu.detach()))})"
        case kernels.SquaredExponential():
            return "squared exponential kernel (very smooth functions)"
        case kernels.RationalQuadratic():
            return f"rational quadratic kernel (mixed length scales, α = {number(float(kernel.alpha.detach()))})"
        case kernels.Periodic():
            return f"periodic kernel (period {_range(kernel.period)})"
        case kernels.Linear():
            return "linear kernel (straight lines)" + ("" if kernel.bias is None else " with an intercept")
        case kernels.Task():
            return f"kernel over {kernel.num_tasks} related tasks"
        case kernels.Tanimoto():
            return "Tanimoto kernel (similarity of counts)"
    return repr(kernel)


def _range(value: Tensor) -> str:
    low, high = number(float(value.detach().min())), number(float(value.detach().max()))
    return low if low == high else f"{low} to {high}"
