"""A preconditioner of a low-rank part and local blocks, for determinants; the blocks also for leave-one-out variances.

    P = F F^T + B,    F F^T ~ K of low rank,    B block-diagonal with  P = H  inside every block

The low-rank part covers smooth variation, the blocks strong local correlations. Snelson and Ghahramani (2007) use P in
place of H; here results are exact for any P, and a P close to H makes their error small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathgp.compute.memory import spans
from pathgp.compute.random import permutation
from pathgp.operators import Operator
from pathgp.solvers.base import Run
from pathgp.solvers.cholesky import factorise
from pathgp.solvers.preconditioners import RandomlyPivotedCholesky, automatic_rank

# Larger blocks reduce the error. Up to this size, and up to n / 16 rows, they cost less than the products with H.
_LARGEST_BLOCK = 1024
# Centres whose columns of K are evaluated at once.
_CENTRES_AT_ONCE = 128


def local_blocks(H: Operator, generator: torch.Generator) -> list[Tensor]:
    """Rows in blocks around random centres: every row belongs to the centre of the largest correlation.

    A block has at most b = 1024 rows, n / 16 rows, and as many as an eighth of the memory budget holds as n b numbers.
    Cost: 2 n / b columns of K.
    """
    n = H.shape[0]
    size = max(1, min(_LARGEST_BLOCK, -(-n // 16), H.memory // (64 * n)))
    centres = permutation(n, generator, H.device)[: -(-2 * n // size)]
    scale = H.diagonal().sqrt()
    best, owner = torch.full_like(scale, -torch.inf), torch.zeros(n, dtype=torch.long, device=H.device)
    for part in spans(len(centres), _CENTRES_AT_ONCE):
        identity = torch.eye(part.stop - part.start, dtype=H.dtype, device=H.device)
        value, place = (H.columns(centres[part], identity) / scale[centres[part]]).max(1)
        owner = torch.where(value > best, place + part.start, owner)
        best = torch.maximum(value, best)
    cells = torch.split(owner.argsort(), torch.bincount(owner, minlength=len(centres)).tolist())
    return [block for cell in cells if len(cell) for block in cell.tensor_split(-(-len(cell) // size))]


class LocalPreconditioner:
    """P = S S^T with S = L (I + G G^T)^1/2, where B = L L^T and G = L^-1 F; all in float64.

    (I + G G^T)^-1/2 = I - G V (C + C^1/2)^-1 V^T G^T  with  I + G^T G = V C V^T.  For rank r and blocks of b rows time
    O(n (r^2 + b^2)) once and O(n (r + b) s) per application, memory O(n (r + b)).
    """

    def __init__(self, H: Operator, generator: torch.Generator) -> None:
        n = H.shape[0]
        run = Run(H, torch.zeros(n, 1, dtype=H.dtype, device=H.device), None, None, 0.0, None, generator, None, "every")
        # Half of the rank that a solve would use: the exact trace needs the same number of columns again.
        rank = max(1, automatic_rank(H) // 2)
        variances = H.diagonal().to(torch.float64) - H.noise
        F, _ = RandomlyPivotedCholesky(rank).factorise(run, variances)
        self._H, self._blocks, self._factors = H, local_blocks(H, generator), []
        for rows in self._blocks:
            B = H.block(rows).to(torch.float64) - F[rows] @ F[rows].T
            self._factors.append(factorise(B)[0])
        self._G = self._substitute(F)
        values, vectors = torch.linalg.eigh(self._G.T @ self._G)
        self._C = values.clamp_min(0.0) + 1.0
        self._V = vectors
        self.rank, self.largest_block = F.shape[1], max(map(len, self._blocks))
        centres = H.cost(min(n, -(-2 * n // self.largest_block)))
        self.epochs = run.epochs + centres + H.cost(self.largest_block)

    def whiten(self, R: Tensor) -> Tensor:
        """S^-1 R."""
        return self._inverse_root(self._substitute(R.to(torch.float64)))

    def whiten_transposed(self, R: Tensor) -> Tensor:
        """S^-T R."""
        return self._substitute(self._inverse_root(R), transposed=True)

    def log_determinant(self) -> float:
        """log|P|."""
        diagonals = torch.cat([factor.diagonal() for factor in self._factors])
        return float(2.0 * diagonals.log().sum() + self._C.log().sum())

    def trace(self) -> float:
        """tr(P^-1 H), exactly, by one product of H with r columns.

        B^-1 (H - P) has a zero diagonal, as H = P inside the blocks. By the Woodbury identity what remains is
        n + tr(G^T G) - tr(Z^T H Z),  Z = L^-T G V C^-1/2.
        """
        total = 0.0
        step = max(1, self._H.memory // (64 * len(self._G)))
        for part in spans(self.rank, step):
            Z = self._substitute(self._G @ (self._V[:, part] / self._C[part].sqrt()), transposed=True).to(self._H.dtype)
            total += float((Z.to(torch.float64) * (self._H @ Z).to(torch.float64)).sum())
        return len(self._G) + float((self._C - 1.0).sum()) - total

    def _inverse_root(self, R: Tensor) -> Tensor:
        inner = (self._V / (self._C + self._C.sqrt())) @ (self._V.T @ (self._G.T @ R))
        return R - self._G @ inner

    def _substitute(self, R: Tensor, transposed: bool = False) -> Tensor:
        """L^-1 R, or L^-T R."""
        result = torch.empty_like(R)
        for rows, factor in zip(self._blocks, self._factors, strict=True):
            L = factor.T if transposed else factor
            result[rows] = torch.linalg.solve_triangular(L, R[rows], upper=transposed)
        return result
