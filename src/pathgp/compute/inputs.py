"""Reading what users pass in: arrays or tensors, checked once at the public entry points."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgp.compute.counts import CountRows, are_counts

Array = Any  # a NumPy array or a torch tensor, whichever the caller works with


@dataclass(frozen=True)
class Matrix:
    """Inputs X as a floating tensor (n, d), and whether the caller works in NumPy. Sparse matrices are `CountRows`."""

    X: Tensor
    is_numpy: bool

    def to_caller(self, result: Tensor) -> Array:
        """A result in the caller's own kind of array."""
        return result.detach().cpu().numpy() if self.is_numpy else result


_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_NO_MISSING_VALUES = "remove or fill them, a Gaussian process of rows does not accept missing values"


def read_matrix(
    X: Array,
    name: str = "X",
    columns: int | None = None,
    like: Tensor | None = None,
    source: str = "the model was given",
    advice: str = _NO_MISSING_VALUES,
) -> Matrix:
    """Check inputs (n, d): numeric, two-dimensional, finite, of the width and the kind that is expected.

    Integers become float64; sparse matrices of SciPy, which must hold counts, `CountRows`. ``like``: the training
    inputs, on whose device the result must be (NumPy arrays are moved) and whose dtype must hold its squares. Nothing
    is rounded to that dtype: an offset must be subtracted before. ``source``: where the number of columns comes from,
    for the message. ``advice``: what to do about values that are not finite.
    """
    tensor, is_numpy = _tensor(X, name)
    if tensor.ndim != 2:
        hint = ""
        if tensor.ndim == 1:
            is_row = columns is not None and columns > 1 and len(tensor) == columns
            hint = f"; one row is {name}[None, :]" if is_row else f"; one column of inputs is {name}[:, None]"
        raise ValueError(f"{name} must have two dimensions (rows, columns), got shape {tuple(tensor.shape)}{hint}")
    if tensor.shape[1] == 0:
        raise ValueError(f"{name} has no columns")
    if columns is not None and tensor.shape[1] != columns:
        raise ValueError(f"{name} has {tensor.shape[1]} columns, {source} {columns}")
    if isinstance(tensor, CountRows):
        return Matrix(tensor if like is None else _move(tensor, like, name, is_numpy), is_numpy)
    _require_finite(tensor, name, advice)
    if like is not None:
        tensor = _move(tensor, like, name, is_numpy)
        if isinstance(like, CountRows) and not tensor.requires_grad and are_counts(tensor):
            return Matrix(CountRows.from_dense(tensor), is_numpy)
    dtype = tensor.dtype if like is None else like.dtype
    limit = math.sqrt(torch.finfo(dtype).max) / 16
    if tensor.numel() and float(tensor.detach().abs().max()) > limit:
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(f"{name} has values beyond {limit:.0e}, whose squares leave the range of {kind}: rescale it")
    return Matrix(tensor, is_numpy)


def read_points(X: Array, name: str, sets: int, columns: int, like: Tensor) -> Matrix:
    """Check sets of points of equal size (sets, q, columns), as `read_matrix` checks one set."""
    tensor, is_numpy = _tensor(X, name)
    if tensor.ndim != 3 or tensor.shape[0] != sets or tensor.shape[2] != columns:
        hint = ""
        if tensor.ndim == 2 and tensor.shape == (sets, columns):
            hint = f"; one point for every path is {name}[:, None, :]"
        elif tensor.ndim == 2:
            hint = f"; all paths at the same points are paths({name})"
        shape = f"({sets}, q, {columns}): q points of {columns} columns for each of the {sets} paths"
        raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}{hint}")
    _require_finite(tensor, name)
    tensor = _move(tensor, like, name, is_numpy)
    read_matrix(tensor.detach().flatten(0, 1), name, like=like)
    return Matrix(tensor, is_numpy)


def read_numbers(numbers: Any, name: str, count: int) -> Tensor:
    """Check whole numbers (p,) from 0 to count - 1; int64 on the CPU."""
    array = np.asarray(numbers.cpu() if isinstance(numbers, Tensor) else numbers)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
        raise TypeError(f"{name} must be a list of whole numbers, got {array.dtype} of shape {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() < count):
        raise ValueError(f"{name} must be numbers from 0 to {count - 1}, got {array.min()} to {array.max()}")
    return torch.from_numpy(array.astype(np.int64))


def read_vector(y: Array, n: int, name: str, like: Tensor, only_finite: bool = True) -> Tensor:
    """Check targets or noise (n,), as float64 on the device of ``like``; finite unless ``only_finite`` is False.

    float64, because a large offset must be subtracted before the values are rounded to float32.
    """
    tensor, is_numpy = _tensor(y, name)
    if tensor.shape != (n,):
        hint = "; one number for all rows belongs into the model" if name == "noise" and tensor.ndim == 0 else ""
        hint = f"; use {name}[:, 0]" if tensor.ndim == 2 and tensor.shape[1] == 1 else hint
        raise ValueError(f"{name} must have shape ({n},), one value per row of X, got {tuple(tensor.shape)}{hint}")
    if only_finite:
        _require_finite(tensor, name)
    return _move(tensor, like, name, is_numpy).to(torch.float64)


def result_dtype(X: Tensor, y: Tensor) -> torch.dtype:
    """The dtype of predictions for targets y (n,), float64: that of X, or float64 if that lacks the digits.

    float32 has no room for targets such as 2.4e8 + sin(x), and none for their predictions.
    """
    return torch.float64 if rounding_error(y, X.dtype) > 1e-4 else X.dtype


def rounding_error(y: Tensor, dtype: torch.dtype) -> float:
    """The largest error of rounding y (n,), float64, to a dtype, in standard deviations of y; 0 for a constant."""
    if dtype == torch.float64:
        return 0.0
    y = y.detach()
    spread = float(y.std(correction=0))
    return float((y.to(dtype).to(torch.float64) - y).abs().max()) / spread if spread else 0.0


def read_grid(Y: Array, name: str = "Y") -> Tensor:
    """Check a grid of values, NaN where one is missing: a floating tensor with at least one dimension."""
    tensor, _ = _tensor(Y, name)
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise ValueError(f"{name} must be a grid with at least one cell, got shape {tuple(tensor.shape)}")
    if bool(torch.isinf(tensor).any()):
        first = torch.nonzero(torch.isinf(tensor))[0].tolist()
        raise ValueError(f"{name} is infinite at cell {first}: mark missing values by NaN")
    return tensor


def read_factors(factors: Any, shape: tuple[int, ...], sides: int, like: Tensor) -> list[Tensor]:
    """Check the inputs of the sides of a grid: (p_i, d_i) each, in their own dtype on the device of ``like``.

    One-dimensional inputs become a column, None becomes 0, 1, ..., p_i - 1.
    """
    if len(shape) != sides:
        raise ValueError(f"Y has {len(shape)} dimensions, the model has {sides} kernels: one per side of the grid")
    if not isinstance(factors, (list, tuple)) or len(factors) != sides:
        raise ValueError(f"factors must be a list of {sides} sets of inputs, one per side of the grid")
    found = []
    for i, (F, p) in enumerate(zip(factors, shape, strict=True)):
        if F is None:
            found.append(torch.arange(p, dtype=torch.float64, device=like.device).unsqueeze(1))
            continue
        matrix = read_side(F, f"factor {i}", like).X
        if len(matrix) != p:
            raise ValueError(f"factor {i} has {len(matrix)} rows, side {i} of Y has {p} cells")
        found.append(matrix)
    return found


def read_side(F: Array, name: str, like: Tensor | None = None, columns: int | None = None) -> Matrix:
    """Check the inputs of one side of a grid, (p, d) or (p,), as `read_matrix` does."""
    tensor, is_numpy = _tensor(F, name)
    X = read_matrix(tensor.unsqueeze(1) if tensor.ndim == 1 else tensor, name, columns).X
    return Matrix(X if like is None else _move(X, like, name, is_numpy), is_numpy)


def whole_number(value: Any, name: str, least: int) -> int:
    """A count, at least ``least``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def real_number(value: Any, name: str) -> float:
    """A finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def read_dtype(dtype: Any, *others: Any) -> Any:
    """Return torch.float32 or torch.float64, which may be given by name, or one of ``others``; ValueError otherwise."""
    found = _DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    allowed = (*_DTYPES.values(), *others)
    if found not in allowed:
        *names, last = (value if isinstance(value, torch.dtype) else repr(value) for value in allowed)
        raise ValueError(f"dtype must be {', '.join(map(str, names))} or {last}, got {dtype!r}")
    return found


def read_device(device: str | torch.device | None) -> torch.device:
    """A device by name, the CPU for None; ValueError if it is not available."""
    try:
        return torch.empty(0, device=device or "cpu").device
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be 'cpu', 'cuda' or similar and available, got {device!r}: {reason}") from None


def _tensor(value: Array, name: str) -> tuple[Tensor, bool]:
    is_numpy = not isinstance(value, Tensor)
    if is_numpy:
        if hasattr(value, "tocsr"):
            return CountRows.from_scipy(value, name), True
        array = as_array(value, name)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            array = as_float64(array, name)
        # A private copy: torch cannot wrap arrays with negative strides or foreign byte order.
        value = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    if value.layout != torch.strided or value.device.type == "meta":
        raise TypeError(f"{name} must be a dense tensor with values, got {value.layout} on {value.device}")
    if value.is_complex():
        raise TypeError(f"{name} must be real, got {value.dtype}")
    if not value.is_floating_point():
        value = torch.from_numpy(as_float64(value.cpu().numpy(), name)).to(value.device)
    if value.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} is {value.dtype}: use float32 or float64")
    return value, is_numpy


def as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """A foreign object as a NumPy array; errors for anything but numbers, and for masked values."""
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} has masked values, and the mask would be lost: leave them out, or on a grid with holes mark them "
            f"by {name}.filled(numpy.nan)"
        )
    if hasattr(value, "toarray"):
        raise TypeError(f"{name} is sparse ({type(value).__name__}): use {name}.toarray()")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        expected = "real" if array.dtype.kind == "c" else "numeric"
        hint = f"; if these are numbers, use {name}.astype(float)" if array.dtype.kind in "OUS" else ""
        if array.dtype.kind in "mM":
            hint = "; as days: (dates - dates.min()) / numpy.timedelta64(1, 'D')"
        elif hint and hasattr(value, "columns"):
            hint += "; pathgp.sklearn.GPRegressor reads tables with text and dates, in fit and predict"
        raise TypeError(f"{name} must be {expected}, got an array of dtype {array.dtype}{hint}")
    return array


def as_float64(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Numbers as float64; ValueError for whole numbers beyond 2^53 that it cannot hold, such as nanoseconds."""
    found: np.ndarray[Any, Any] = array.astype(np.float64)
    if array.dtype.kind not in "iu" or not array.size or np.abs(found).max() <= 2.0**53:
        return found  # up to there float64 holds all whole numbers
    # Python's numbers compare exactly; few arrays come here.
    if any(int(value) != int(whole) for value, whole in zip(found.flat, array.flat, strict=True)):
        raise ValueError(
            f"{name} has whole numbers beyond 2^53 that float64 cannot hold: subtract an offset, or use a larger unit "
            "(seconds in place of nanoseconds)"
        )
    return found


def _move(tensor: Tensor, like: Tensor, name: str, is_numpy: bool) -> Tensor:
    if not is_numpy and tensor.device != like.device:
        raise TypeError(f"{name} is on {tensor.device}, the training inputs are on {like.device}: move one of them")
    return tensor.to(like.device)


def _require_finite(tensor: Tensor, name: str, advice: str = _NO_MISSING_VALUES) -> None:
    bad = ~torch.isfinite(tensor.detach())
    if not bool(bad.any()):
        return
    first = torch.nonzero(bad)[0].tolist()
    titles = {1: ("row",), 2: ("row", "column"), 3: ("path", "point", "column")}[len(first)]
    place = ", ".join(f"{title} {number}" for title, number in zip(titles, first, strict=True))
    value = float(tensor.detach()[tuple(first)])
    raise ValueError(f"{name} contains {value} at {place} ({int(bad.sum())} such values in all): {advice}")
