"""Rows of counts, most of them zero, stored as sets of tokens.

`CountRows` has the shape and the dtype of a dense matrix (n, d), for instance 100,000 fingerprints of molecules with
1,024 columns, but stores only tokens: the count c in column k is the c tokens (k, 1), ..., (k, c). Rows can be
selected, joined, moved and multiplied by a matrix. Every other operation of torch makes a dense matrix first: use it on
blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_aten = torch.ops.aten
_LARGEST = 2**15  # the largest count


class CountRows(Tensor):
    """Non-negative whole numbers (n, d), most of them zero, which torch sees as a floating tensor.

    ends: positions (n + 1,) of the tokens where rows begin and end, int64.  tokens: the token (k, t) of column k and
    level t has the number k + (t - 1) d, int64; those of a row by columns, then by levels.
    """

    ends: Tensor
    tokens: Tensor
    # As for parameters: results are not wrapped, `__torch_dispatch__` alone decides what an operation does.
    __torch_function__ = torch.nn.Parameter.__torch_function__

    @staticmethod
    def __new__(cls, ends: Tensor, tokens: Tensor, width: int, dtype: torch.dtype) -> CountRows:
        make: Any = Tensor._make_wrapper_subclass
        rows: CountRows = make(cls, (len(ends) - 1, width), dtype=dtype, device=tokens.device)
        rows.ends, rows.tokens = ends, tokens
        return rows

    @classmethod
    def from_entries(cls, ends: Tensor, columns: Tensor, counts: Tensor, width: int, dtype: torch.dtype) -> CountRows:
        """The rows with these non-zero entries: ``ends`` (n + 1,) are their positions where rows begin and end."""
        last = counts.long().cumsum(0)
        level = torch.arange(int(counts.sum()), device=counts.device) - (last - counts).repeat_interleave(counts)
        tokens = columns.long().repeat_interleave(counts) + level * width
        return cls(torch.cat([last.new_zeros(1), last])[ends], tokens, width, dtype)

    @classmethod
    def from_dense(cls, X: Tensor) -> CountRows:
        """The non-zero entries of X (n, d), which must be counts."""
        row, column = X.detach().nonzero(as_tuple=True)
        ends = torch.searchsorted(row, torch.arange(len(X) + 1, device=X.device))
        return cls.from_entries(ends, column, X.detach()[row, column].long(), X.shape[1], X.dtype)

    @classmethod
    def from_scipy(cls, matrix: Any, name: str) -> CountRows:
        """A sparse matrix of SciPy; ValueError unless it holds counts. Integers are treated as float64."""
        rows = matrix.tocsr().copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
        values = rows.data
        if values.dtype.kind not in "fiub":
            raise TypeError(f"{name} must be numeric, got a sparse matrix of dtype {values.dtype}")
        wrong = ~((values >= 0) & (values <= _LARGEST) & (values == np.floor(values)))
        if wrong.any():
            entry = int(wrong.argmax())
            row = int(np.searchsorted(rows.indptr, entry, side="right")) - 1
            place = f"{values[entry]:g} in row {row}, column {rows.indices[entry]}"
            raise ValueError(
                f"{name} is sparse and has {place}: sparse inputs hold counts, whole numbers from 0 to {_LARGEST:,}; "
                f"use {name}.toarray() for other numbers"
            )
        dtype = torch.float32 if values.dtype == np.float32 else torch.float64
        ends, columns, counts = (torch.from_numpy(a.astype(np.int64)) for a in (rows.indptr, rows.indices, values))
        return cls.from_entries(ends, columns, counts, rows.shape[1], dtype)

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """What is stored: ends and tokens."""
        return self.ends, self.tokens

    def rows(self) -> Tensor:
        """The row of every token."""
        return torch.arange(len(self), device=self.ends.device).repeat_interleave(self.ends.diff())

    def totals(self) -> Tensor:
        """The sum of every row (n,), in the dtype of the rows."""
        return self.ends.diff().to(self.dtype)

    def entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and counts of the non-zero entries, row by row; counts in float64."""
        first = (self.tokens < self.shape[1]).nonzero().flatten()
        counts = torch.cat([first, first.new_tensor([len(self.tokens)])]).diff()
        return self.rows()[first], self.tokens[first], counts.to(torch.float64)

    def dense(self) -> Tensor:
        """The dense matrix (n, d)."""
        row, column, count = self.entries()
        result = torch.zeros(self.shape, dtype=self.dtype, device=self.tokens.device)
        result[row, column] = count.to(self.dtype)
        return result

    def select(self, index: Tensor) -> CountRows:  # type: ignore[override]
        """The rows with these numbers (m,)."""
        first, length = self.ends[:-1][index], self.ends.diff()[index]
        ends = torch.cat([length.new_zeros(1), length.cumsum(0)])
        places = torch.arange(int(ends[-1]), device=ends.device) + (first - ends[:-1]).repeat_interleave(length)
        return self._with(ends, self.tokens[places])

    def span(self, start: int, stop: int) -> CountRows:
        """The rows from ``start`` to ``stop``, without a copy of their tokens."""
        stop = max(start, stop)
        ends = self.ends[start : stop + 1]
        first, last = int(ends[0]), int(ends[-1])
        return self._with(ends - first, self.tokens[first:last])

    def _with(self, ends: Tensor, tokens: Tensor) -> CountRows:
        return CountRows(ends, tokens, self.shape[1], self.dtype)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"CountRows(shape={tuple(self.shape)}, tokens={len(self.tokens)}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return CountRows, (*self.parts, self.shape[1], self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SPARSE and (found := _SPARSE[func](*args, **kwargs)) is not NotImplemented:
            return found
        if func._schema.is_mutable:
            raise TypeError(f"{func} would change sparse rows of counts: use X.toarray() or a copy")
        dense = tree_map(lambda value: value.dense() if isinstance(value, CountRows) else value, (tuple(args), kwargs))
        return func(*dense[0], **dense[1])


def are_counts(X: Tensor) -> bool:
    """Whether X holds non-negative whole numbers that `CountRows` can store."""
    if isinstance(X, CountRows) or X.numel() == 0:
        return True
    return bool(X.min() >= 0) and bool(X.max() <= _LARGEST) and bool(X.round().eq(X).all())


def stored_parts(X: Tensor) -> tuple[Tensor, ...]:
    """The tensors that hold the numbers of X: X itself, or the parts of sparse rows."""
    return X.parts if isinstance(X, CountRows) else (X,)


def _like(new: Any) -> Callable[..., Any]:
    """``X.new_zeros(...)`` and the like, which need the dtype and the device of X only."""

    def call(X: CountRows, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = new(X.tokens.new_empty(0, dtype=X.dtype), *args, **kwargs)
        return result

    return call


def _copy(X: CountRows, **options: Any) -> CountRows:
    dtype, device = options.get("dtype") or X.dtype, options.get("device") or X.device
    if not dtype.is_floating_point:
        return NotImplemented
    return CountRows(X.ends.to(device), X.tokens.to(device), X.shape[1], dtype)


def _slice(X: CountRows, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> CountRows:
    if dim % 2 == 0:
        start, end, step = slice(start, end, step).indices(len(X))
        return X.span(start, end) if step == 1 else X.select(torch.arange(start, end, step, device=X.device))
    first, last, step = slice(start, end, step).indices(X.shape[1])
    return X if (first, last, step) == (0, X.shape[1], 1) else NotImplemented


def _index(X: CountRows, indices: Sequence[Tensor | None]) -> Tensor:
    index, *rest = indices
    if index is None or any(other is not None for other in rest):
        return NotImplemented
    index = index.nonzero().flatten() if index.dtype == torch.bool else index.long()
    if index.numel() and not -len(X) <= int(index.min()) <= int(index.max()) < len(X):
        raise IndexError(f"row numbers from {int(index.min())} to {int(index.max())} of {len(X)} rows")
    index = torch.where(index < 0, index + len(X), index)
    return X.select(index) if index.ndim == 1 else X.select(index.flatten()).dense().unflatten(0, index.shape)


def _select(X: CountRows, dim: int, index: int) -> Tensor:
    if dim % 2:
        return NotImplemented
    index %= len(X)
    return X.span(index, index + 1).dense()[0]


def _split(X: CountRows, size: int | Sequence[int], dim: int = 0) -> list[CountRows]:
    if dim % 2:
        return NotImplemented
    sizes = [min(size, len(X) - start) for start in range(0, len(X), size)] if isinstance(size, int) else list(size)
    ends = np.cumsum(sizes).tolist() or [0]
    return [X.span(end - length, end) for end, length in zip(ends, sizes or [0], strict=True)]


def _cat(parts: Sequence[Tensor], dim: int = 0) -> CountRows:
    if dim % 2 or not all(isinstance(part, CountRows) for part in parts):
        return NotImplemented
    rows = [part for part in parts if isinstance(part, CountRows)]
    ends = [rows[0].ends]
    for part in rows[1:]:
        ends.append(part.ends[1:] + ends[-1][-1])
    dtype = torch.promote_types(rows[0].dtype, rows[-1].dtype)
    return CountRows(torch.cat(ends), torch.cat([part.tokens for part in rows]), rows[0].shape[1], dtype)


def _multiply(X: Tensor, W: Tensor) -> Tensor:
    if not isinstance(X, CountRows) or isinstance(W, CountRows):
        return NotImplemented
    return torch.nn.functional.embedding_bag(X.tokens % X.shape[1], W.contiguous(), X.ends[:-1], mode="sum")


_SPARSE: dict[Any, Callable[..., Any]] = {
    _aten.detach.default: lambda X: X._with(*X.parts),
    _aten.alias.default: lambda X: X._with(*X.parts),
    _aten.clone.default: lambda X, **_: X._with(*(part.clone() for part in X.parts)),
    _aten._to_copy.default: _copy,
    _aten.slice.Tensor: _slice,
    _aten.index.Tensor: _index,
    _aten.index_select.default: lambda X, dim, index: _index(X, [index]) if dim % 2 == 0 else NotImplemented,
    _aten.select.int: _select,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.cat.default: _cat,
    _aten.mm.default: _multiply,
    **{new: _like(new) for new in (_aten.new_zeros.default, _aten.new_ones.default, _aten.new_empty.default,
                                   _aten.new_full.default)},
}  # fmt: skip
