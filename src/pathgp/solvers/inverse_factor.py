"""Vecchia's sparse factor U of an inverse covariance matrix: H^-1 ~ U U^T."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from pathgp.compute.memory import spans
from pathgp.compute.neighbours import earlier_neighbours

# The small systems that are solved together: bytes per entry (differences of inputs, values, factors), and the largest
# number of entries. On a CPU they stay in the cache.
BYTES_PER_SMALL, _AT_ONCE = 96, {"cpu": 2**20}
_AT_ONCE_GPU = 2**26
# Added to the diagonal of the small systems, relative to it: equal rows without noise would make them singular.
_RIDGE = 1e-12


class InverseFactor:
    """R -> U U^T R for columns of U with the same number of entries: their rows (n, m + 1) and values (n, m + 1)."""

    def __init__(self, index: Tensor, values: Tensor) -> None:
        n, width = index.shape
        flat, values = index.flatten(), values.flatten()
        starts = torch.arange(0, n * width + 1, width, device=index.device)
        by_row = flat.argsort(stable=True)
        starts_by_row = pad(torch.bincount(flat, minlength=n).cumsum(0), (1, 0))
        self._transposed = _sparse(starts, flat, values)
        self._factor = _sparse(starts_by_row, by_row // width, values[by_row])

    def __call__(self, R: Tensor) -> Tensor:
        return (self._factor @ (self._transposed @ R.to(torch.float64))).to(R.dtype)


def factor_columns(
    coordinates: Tensor, blocks: Callable[[Tensor], Tensor], order: Tensor, m: int, memory: int
) -> tuple[Tensor, Tensor]:
    """The rows (n, m + 1), int32, and the values (n, m + 1), float64, of the non-zero entries of every column of U.

    ``blocks``: computes H[S, S] (g, b, b) in float64 for an index S (g, b).  With H[S, S] = L L^T and row i the last of
    S, u_i = L^-T e_last. The first m + 1 rows together are one block.
    """
    n, device = len(order), order.device
    near = earlier_neighbours(coordinates[order], m, memory)
    index = torch.empty(n, m + 1, dtype=torch.int32, device=device)
    values = torch.empty(n, m + 1, dtype=torch.float64, device=device)
    first, identity = order[: m + 1], torch.eye(m + 1, dtype=torch.float64, device=device)
    values[first] = torch.linalg.solve_triangular(_factorise(blocks(first.unsqueeze(0)))[0], identity, upper=False)
    index[first] = first.to(torch.int32)
    for part in spans(len(near), systems_at_once(m + 1, device, memory)):
        rows = order[part.start + m + 1 : part.stop + m + 1]
        S = torch.cat([order[near[part].long()], rows.unsqueeze(1)], 1)
        L = _factorise(blocks(S))
        values[rows] = torch.linalg.solve_triangular(L.mT, identity[:, -1:], upper=True).squeeze(2)
        index[rows] = S.to(torch.int32)
    return index, values


def systems_at_once(b: int, device: torch.device, memory: int) -> int:
    """The number of systems of size b that are evaluated and solved together."""
    return max(1, min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), memory // (4 * BYTES_PER_SMALL)) // b**2)


def _factorise(A: Tensor) -> Tensor:
    """Cholesky factors of small systems (g, b, b), which are changed in place."""
    A.diagonal(dim1=1, dim2=2).mul_(1.0 + _RIDGE)
    return torch.linalg.cholesky(A)


def _sparse(starts: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """A square sparse matrix by rows."""
    n = len(starts) - 1
    with warnings.catch_warnings():
        # PyTorch warns that its sparse matrices may change.
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        return torch.sparse_csr_tensor(starts.int(), index.int(), values, (n, n), check_invariants=False)
