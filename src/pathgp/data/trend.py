"""The basis of a trend in the model's units: orthogonal functions, and the least-squares trend taken off y."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A basis function is refused if less than this part of its root mean square is left after regression on the others.
_INDEPENDENT = 1e-9


@dataclass(frozen=True)
class TrendScaling:
    """b(x) -> b(x) R^-1, which has orthogonal columns of mean square one at the data; y -> y - b(x) R^-1 shift.

    Without it the right-hand sides of a solve would be large numbers that nearly cancel, such as years and the level of
    y. Any choice gives the same posterior.

    root: R (p, p), float64, for basis functions in the units of the caller.  shift: (p,) float64, the coefficients of
    the least-squares trend, in the units of y.
    """

    root: Tensor
    shift: Tensor

    @classmethod
    def of(cls, basis: Tensor, y: Tensor, names: Sequence[str]) -> TrendScaling:
        """From the basis functions at the data (n, p) and y (n,); ValueError if the data do not determine the trend."""
        n, p = basis.shape
        if n <= p:
            raise ValueError(f"a trend of {p} functions needs more than {p} observations, got {n}: use a simpler trend")
        Q, R = torch.linalg.qr(basis.detach())
        sizes = torch.linalg.vector_norm(basis.detach(), dim=0)
        dependent = torch.nonzero(~(R.diagonal().abs() > _INDEPENDENT * sizes))
        if len(dependent):
            name = names[int(dependent[0])]
            raise ValueError(
                f"the data do not determine the trend: {name!r} is a combination of {', '.join(names)} at all rows; "
                "use a simpler trend, or leave it out by mean=Trend(..., columns=...)"
            )
        return cls(R / n**0.5, (Q.T @ y.detach().to(torch.float64)) / n**0.5)

    def basis(self, values: Tensor) -> Tensor:
        """Basis functions (m, p) in the units of the caller -> in the model's units, float64."""
        return torch.linalg.solve_triangular(self.root, values, upper=True, left=False)

    def restore_coefficients(self, coefficients: Tensor) -> Tensor:
        """Coefficients (p, k) of the model's basis functions -> of those of the caller."""
        return torch.linalg.solve_triangular(self.root, coefficients, upper=True)
