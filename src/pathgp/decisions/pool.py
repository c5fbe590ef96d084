"""The rows of a pool, read and checked a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.inputs import as_float64, read_matrix
from pathgp.compute.memory import spans
from pathgp.posterior.table import Posterior

# Largest number of rows of a block, dense and sparse, and the share of the memory budget for its inputs and paths.
_ROWS, _SPARSE_ROWS = 16_384, 65_536
_SHARE = 0.1
# Entries of a block that is only checked.
_ENTRIES = 2**24
_DTYPES = (torch.float32, torch.float64)

Rows = NDArray[np.int64]


class Pool:
    """Rows of inputs (c, d): an array, a tensor, a frame of numbers or a sparse matrix of SciPy; `block` gives some."""

    def __init__(self, rows: Any) -> None:
        if hasattr(rows, "to_numpy"):  # a data frame
            rows = rows.to_numpy()
        elif not hasattr(rows, "ndim"):
            try:
                rows = np.asarray(rows)
            except ValueError as error:
                raise ValueError(f"the pool cannot be read as an array of numbers: {error}") from error
        is_sparse, dtype = hasattr(rows, "tocsr"), getattr(rows, "dtype", None)
        is_real = not dtype.is_complex if isinstance(dtype, torch.dtype) else getattr(dtype, "kind", "") in "fiub"
        if not is_sparse and not is_real:
            raise TypeError(
                f"the pool must hold real numbers, got dtype {dtype}; if these are numbers, use astype(float)"
            )
        if rows.ndim != 2:
            raise ValueError(f"the pool must have two dimensions (rows, columns), got shape {tuple(rows.shape)}")
        if np.ma.is_masked(rows):
            raise ValueError("the pool has masked values, and the mask would be lost: leave out such rows")
        rows = read_matrix(rows, "pool").X if is_sparse else rows
        self.rows = rows.detach() if isinstance(rows, Tensor) else rows
        self.shape: tuple[int, int] = tuple(rows.shape)
        self.device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")

    def block(self, index: Tensor, device: torch.device) -> Tensor:
        """The rows with these numbers (b, d), which must be finite; sparse ones stay sparse."""
        part = self.rows[index.to(self.rows.device) if isinstance(self.rows, Tensor) else index.numpy()]
        if isinstance(part, Tensor):
            block = part.to(device)
        else:
            part = np.asarray(part)
            is_plain = part.dtype in (np.float32, np.float64) and part.dtype.isnative
            block = torch.as_tensor(part if is_plain else as_float64(part, "the pool"), device=device)
        block = block if block.dtype in _DTYPES else block.to(torch.float64)
        if not isinstance(block, CountRows) and not bool(torch.isfinite(block).all()):
            row, column = (~torch.isfinite(block)).nonzero()[0].tolist()
            raise ValueError(
                f"the pool contains {float(block[row, column])} at row {int(index[row])}, column {column}: remove such "
                "rows, or fill in what is missing"
            )
        return block

    def check(self) -> None:
        """Read all rows once; ValueError if one is not finite."""
        if not isinstance(self.rows, CountRows):
            for part in spans(self.shape[0], max(1, min(_ROWS, _ENTRIES // max(1, self.shape[1])))):
                self.block(torch.arange(part.start, part.stop), self.device)

    def blocks(self, index: Tensor, post: Posterior) -> Iterator[tuple[Tensor, Tensor]]:
        """Row numbers (b,) and rows (b, d), in blocks that fit the memory budget of the posterior."""
        device = post.system.X.device
        # Hashes of sparse rows are drawn once for every block: large blocks take less time.
        is_sparse = isinstance(self.rows, CountRows)
        width = 8 * max(1, (0 if is_sparse else self.shape[1]) + 2 * post.num_samples)
        most = _SPARSE_ROWS if is_sparse else _ROWS
        step = max(1, min(most, int(_SHARE * post.settings.compute.budget(device)) // width))
        for part in spans(len(index), step):
            yield index[part], self.block(index[part], device)
