"""One pass over the data: everything that the posterior and the objective of a direct solution need.

The sums are those of whitened rows, V = L^-1 K_ZX Lambda^-1/2: B = I + V V^T has no eigenvalue below one, however
ill-conditioned K_ZZ is. K_ZZ + K_ZX Lambda^-1 K_XZ, which has the same information, may lose all digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.memory import halve_on_failure, spans
from pathgp.sparse.family import whiten_rows
from pathgp.sparse.problem import Problem

# Panels in which the lower half of V V^T is computed: 5/8 of the operations of the whole.
_PANELS = 4


@dataclass(frozen=True)
class Sums:
    """Sums over whitened rows beside V V^T.

    c: (m,) = V r.  rows: n.  misfit: r^T r.  logdet: log|Lambda|.  trace: see `WhitenedRows`.
    """

    c: Tensor
    rows: int
    misfit: float
    logdet: float
    trace: float

    def __add__(self, other: Sums) -> Sums:
        """The sums over all rows of both."""
        sums = (getattr(self, name) + getattr(other, name) for name in ("c", "rows", "misfit", "logdet", "trace"))
        return Sums(*sums)

    def quadratic(self, factor: Tensor) -> float:
        """r^T (Q + Lambda)^-1 r for the Cholesky factor of B: by Woodbury r^T r - c^T B^-1 c."""
        white = torch.linalg.solve_triangular(factor, self.c.unsqueeze(1), upper=False)
        return self.misfit - float(white.square().sum())

    def objective(self, factor: Tensor) -> float:
        """log N(y | mu, Q + Lambda), minus half the trace for a bound; in nats and the model's units.

        |Q + Lambda| = |Lambda| |B|.
        """
        logdet = self.logdet + 2.0 * float(factor.diagonal().log().sum())
        constant = self.rows * math.log(2.0 * math.pi)
        return -0.5 * (constant + logdet + self.quadratic(factor) + self.trace)


def accumulate(problem: Problem, root: Tensor) -> tuple[Tensor, Sums]:
    """The lower half of B (m, m), and the other sums over all rows, with L = ``root``.

    Time 2 n m^2 operations for V and 5/4 n m^2 for V V^T; memory 8 m^2 bytes and one block.
    """

    def compute(rows: int) -> tuple[Tensor, Sums]:
        m = len(root)
        B, c = torch.eye(m, dtype=root.dtype, device=root.device), root.new_zeros(m)
        sums = root.new_zeros(3)
        for block in problem.blocks(rows):
            X, r, noise = problem.rows(block)
            V = torch.linalg.solve_triangular(root, problem.kernel(problem.Z, X), upper=False)
            white = whiten_rows(problem.method, problem.kernel, X, V, r, noise)
            for J in spans(m, -(-m // _PANELS)):
                B[J, : J.stop].addmm_(white.V[J], white.V[: J.stop].T)
            c += white.V @ white.r
            sums += torch.stack([white.r.square().sum(), white.logdet, white.trace])
        return B, Sums(c, len(problem.data.y), *sums.tolist())

    with torch.no_grad():
        return halve_on_failure(compute, problem.block_rows)[0]
