"""Mean functions with unknown parameters, in the units of y.

A model's mean may be a number, any function of the inputs, or a torch module whose parameters are learned together with
the kernel. The coefficients of a `Trend` are not learned but integrated out: the posterior contains their uncertainty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import real_number

_BASES = ("constant", "linear", "quadratic")


class Constant(nn.Module):
    """One number for all inputs, learned: mu(x) = value."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(real_number(value, "value"), dtype=torch.float64))

    def forward(self, X: Tensor) -> Tensor:
        return self.value.to(X.device).expand(X.shape[0])

    def __repr__(self) -> str:
        return f"Constant({self.value.item():.4g})"


class Trend(nn.Module):
    """A trend with unknown coefficients: y = b(x)^T beta + f(x) + eps, with a flat prior on beta (universal kriging).

    The posterior is exact: mean, variances, covariances and paths contain the uncertainty of the coefficients, and
    hyperparameters are learned from the restricted likelihood. Each of the p basis functions costs one more right-hand
    side in every solve. Rasmussen and Williams (2006), section 2.7; Matheron (1969).

    Args:
        basis: "constant" (ordinary kriging), "linear" (1 and x_k), "quadratic" (1, x_k and x_k x_l), or a function from
            inputs (n, d) to the values (n, p) of p basis functions; it gets a float64 tensor.
        columns: the columns of X that the trend uses; all by default.
    """

    def __init__(
        self, basis: str | Callable[[Tensor], Tensor] = "linear", columns: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        if not (callable(basis) or basis in _BASES):
            raise ValueError(f"basis must be {', '.join(map(repr, _BASES))} or a function of X, got {basis!r}")
        chosen = None if columns is None else tuple(int(c) for c in columns)
        if chosen is not None and (not chosen or min(chosen) < 0 or len(set(chosen)) != len(chosen)):
            raise ValueError(f"columns must be distinct non-negative column numbers, got {columns}")
        self.basis, self.columns = basis, chosen

    def forward(self, X: Tensor) -> Tensor:
        """The basis functions at X (n, d), in the units of the caller: (n, p), float64."""
        X = self._select(X).to(torch.float64)
        if callable(self.basis):
            return _check_values(self.basis(X), X)
        parts = [torch.ones_like(X[:, :1])]
        if self.basis != "constant":
            parts.append(X)
        if self.basis == "quadratic":
            left, right = torch.triu_indices(X.shape[1], X.shape[1], device=X.device)
            parts.append(X[:, left] * X[:, right])
        return torch.cat(parts, 1)

    def names(self, dim: int, count: int) -> tuple[str, ...]:
        """Names of the ``count`` basis functions for inputs with ``dim`` columns."""
        if callable(self.basis):
            return tuple(f"b{i}" for i in range(count))
        inputs = [f"x{c}" for c in (range(dim) if self.columns is None else self.columns)]
        linear = inputs if self.basis != "constant" else []
        pairs = [(a, b) for i, a in enumerate(inputs) for b in inputs[i:]] if self.basis == "quadratic" else []
        return ("1", *linear, *(f"{a}^2" if a == b else f"{a} {b}" for a, b in pairs))

    def __repr__(self) -> str:
        basis = "a function" if callable(self.basis) else repr(self.basis)
        return f"Trend({basis}" + ("" if self.columns is None else f", columns={list(self.columns)}") + ")"

    def _select(self, X: Tensor) -> Tensor:
        if self.columns is None:
            return X
        if max(self.columns) >= X.shape[1]:
            raise ValueError(f"the trend uses column {max(self.columns)}, but X has only {X.shape[1]} columns")
        return X[:, list(self.columns)]


def _check_values(values: object, X: Tensor) -> Tensor:
    """What a function of the caller gave, checked: (n, p), float64."""
    if not isinstance(values, Tensor) or values.ndim != 2 or values.shape[0] != X.shape[0] or values.shape[1] == 0:
        came = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"the basis of a trend must return a tensor of shape ({X.shape[0]}, p), it gave {came}")
    if not bool(torch.isfinite(values.detach()).all()):
        raise ValueError("the basis of a trend gave NaN or infinite values")
    return values.to(X.device, torch.float64)
