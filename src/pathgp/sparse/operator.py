"""The system of m inducing points as an operator, for solutions without matrices of m x m entries.

    (K_ZZ + K_ZX Sigma^-1 K_XZ) [v, alpha_j] = K_ZX Sigma^-1 [y - mu, f_j(X) + eps_j]

A product is one pass over the data. For methods whose Lambda is the noise alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathgp.compute.memory import even_spans, spans
from pathgp.compute.random import normal
from pathgp.operators import Operator, cross_product
from pathgp.sparse.problem import Problem

# Rows whose noise is drawn at once: the draws do not depend on the memory budget.
_DRAWN_AT_ONCE = 1024


class InducingOperator(Operator):
    """H = K_ZZ + K_ZX Sigma^-1 K_XZ, (m, m), float64. A product with s columns takes O((n + m) m s) and one block."""

    backend = "inducing"

    def __init__(self, problem: Problem) -> None:
        if problem.method.correction != "none":
            raise ValueError("fitc and pitc need a factor of K_ZZ: use solver='cholesky', or sgpr")
        self.problem, Z = problem, problem.Z.detach()
        self.Z, self.kernel, m = Z, problem.kernel, len(Z)
        self.shape, self.dtype, self.device = (m, m), Z.dtype, Z.device
        self.noise = Z.new_zeros(())
        self.memory, self.entries = problem.memory, (2 * len(problem.data.y) + m) * m

    def __matmul__(self, V: Tensor) -> Tensor:
        return self._multiply(self.Z, self.Z, V)

    def rows(self, index: Tensor, V: Tensor) -> Tensor:
        return self._multiply(self.Z[index], self.Z, V)

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        return self._multiply(self.Z, self.Z[index], D)

    def block(self, index: Tensor) -> Tensor:
        identity = torch.eye(len(index), dtype=self.dtype, device=self.device)
        return self._multiply(self.Z[index], self.Z[index], identity)

    def diagonal(self) -> Tensor:
        with torch.no_grad():
            total = self.kernel.diag(self.Z)
            for block in self.problem.blocks():
                X, _, noise = self.problem.rows(block)
                total = total + (self.kernel(self.Z, X).square() / noise).sum(1)
        return total

    def bilinear(self, L: Tensor, R: Tensor, symmetric: bool = False) -> Tensor:
        raise NotImplementedError("learn the hyperparameters by the objective of the method")

    def features(self, num: int, generator: torch.Generator | None = None, draws: int | None = None) -> Tensor:
        raise NotImplementedError("the system of inducing points has no random features")

    def cost(self, rows: int | None = None) -> float:
        # K_XZ V is needed for a few rows as for all.
        return 1.0 if rows is None else 0.5 + 0.5 * rows / len(self.Z)

    def _multiply(self, left: Tensor, right: Tensor, V: Tensor) -> Tensor:
        """(K(left, right) + K(left, X) Sigma^-1 K(X, right)) V for points left (a, d), right (b, d)."""
        with torch.no_grad():
            result = cross_product(self.kernel, left, right, V, self.memory, "exact")
            for block in self.problem.blocks():
                X, _, noise = self.problem.rows(block)
                K = self.kernel(X, right)
                inner = (K @ V) / noise.unsqueeze(1)
                result += (K if left is right else self.kernel(X, left)).T @ inner
        return result


class RightHandSides(NamedTuple):
    """whole: K_ZX Sigma^-1 [y - mu, f_j(X) + eps_j], (m, 1 + s).  noise: the part of eps_j alone, zero for y."""

    whole: Tensor
    noise: Tensor


def targets_of(problem: Problem, rows: slice | Tensor, prior: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (b, d), targets [y - mu, f_j(X)] (b, 1 + s) and variances of the noise (b,) of a block of rows."""
    X, r, noise = problem.rows(rows)
    columns = [r.unsqueeze(1)] if prior is None else [r.unsqueeze(1), prior(X).T]
    return X, torch.cat(columns, 1), noise


def right_hand_sides(problem: Problem, prior: Any, generator: torch.Generator) -> RightHandSides:
    """The right-hand sides, from one pass over the data; the noise of every row is drawn on the way."""
    m, n, s = len(problem.Z), len(problem.data.y), 0 if prior is None else prior.samples
    whole, part = (problem.Z.new_zeros(m, 1 + s) for _ in range(2))
    with torch.no_grad():
        for drawn in spans(n, _DRAWN_AT_ONCE):
            count = drawn.stop - drawn.start
            draws = normal((count, s), generator, torch.float64, problem.Z.device)
            for rows in even_spans(count, problem.block_rows):
                place = slice(drawn.start + rows.start, drawn.start + rows.stop)
                X, targets, noise = targets_of(problem, place, prior)
                K = problem.kernel(problem.Z, X)
                whole += K @ (targets / noise.unsqueeze(1))
                part[:, 1:] += K @ (draws[rows] / noise.sqrt().unsqueeze(1))
    return RightHandSides(whole + part, part)
