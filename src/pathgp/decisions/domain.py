"""The inputs that an optimisation may choose: a box, with lists of values for some columns, and a constraint."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pathgp.compute.inputs import Array, Matrix, read_matrix, real_number, whole_number
from pathgp.compute.random import normal, permutation

Constraint = Callable[[Any], Any]
# Points closer than this share of the box in every column are the same.
_RESOLUTION = 1e-6
# How often a proposal near the data replaces the value of a column with a list of values.
_RESAMPLED = 0.2
# The least factor of the standard deviation of such a proposal.
_NEAREST = 1 / 32
# Attempts to draw points that a constraint allows, and the least number of points of an attempt.
_ATTEMPTS = 100
_AT_ONCE = 4096
# Largest number of points of a box of choices that are listed.
_MOST_COMBINATIONS = 100_000


@dataclass(frozen=True)
class Domain:
    """lower, upper: the box (d,), float64.  choices: allowed values (v,) of some columns, sorted.

    constraint: a function of inputs (m, d) that returns m booleans, or None.  is_numpy: whether it gets, and the caller
    works with, NumPy arrays.  has_candidates: whether inputs are chosen from a list, whose extents the box is.
    """

    lower: Tensor
    upper: Tensor
    choices: dict[int, Tensor]
    constraint: Constraint | None
    is_numpy: bool
    has_candidates: bool = False

    @classmethod
    def read(
        cls,
        bounds: Array,
        choices: Mapping[int, Sequence[float]] | None,
        constraint: Constraint | None,
        device: torch.device,
    ) -> Domain:
        """Check bounds (2, d), choices by column and the constraint."""
        matrix = read_bounds(bounds)
        if matrix.X.shape[0] != 2:
            hint = "; use bounds.T" if matrix.X.shape[1] == 2 else ""
            shape = tuple(matrix.X.shape)
            raise ValueError(
                f"bounds must have two rows, the lower and the upper end of every column, got {shape}{hint}"
            )
        lower, upper = matrix.X.detach().to(device, torch.float64).clone()
        # SciPy's order, one pair of ends for every column, of two columns.
        is_transposed = matrix.X.shape[1] == 2 and bool((matrix.X[:, 0] < matrix.X[:, 1]).all())
        hint = "; give one row of lower and one row of upper ends: bounds.T" if is_transposed else ""
        found = {}
        for column, values in _read_choices(choices).items():
            if not 0 <= column < len(lower):
                raise ValueError(f"choices name column {column}, but bounds have {len(lower)} columns")
            numbers = sorted({real_number(value, f"choices[{column}]") for value in values})
            if not numbers:
                raise ValueError(f"choices[{column}] is empty: give at least one value")
            found[column] = torch.tensor(numbers, dtype=torch.float64, device=device)
            lower[column], upper[column] = numbers[0], numbers[-1]
        for column in range(len(lower)):
            if column not in found and not bool(lower[column] < upper[column]):
                ends = f"{float(lower[column]):g} and {float(upper[column]):g}"
                message = f"the bounds of column {column} are {ends}: the lower one must be less than the upper"
                raise ValueError(message + hint)
        _require_function(constraint)
        return cls(lower, upper, found, constraint, matrix.is_numpy)

    @classmethod
    def of_candidates(cls, X: Tensor, constraint: Constraint | None, is_numpy: bool) -> Domain:
        """The smallest box of candidates X (c, d): the resolution is relative to their extents, in any units."""
        _require_function(constraint)
        X = X.detach()
        return cls(X.amin(0).to(torch.float64), X.amax(0).to(torch.float64), {}, constraint, is_numpy, True)

    @property
    def width(self) -> Tensor:
        """Widths of the box (d,), 1 for columns of one value."""
        width = self.upper - self.lower
        return torch.where(width > 0, width, 1.0)

    @property
    def continuous(self) -> Tensor:
        """Which columns may take any value of the box: (d,)."""
        mask = torch.full_like(self.lower, not self.has_candidates, dtype=torch.bool)
        mask[list(self.choices)] = False
        return mask

    def to_caller(self, X: Tensor) -> Array:
        """A tensor as the caller works with it."""
        return X.detach().cpu().numpy() if self.is_numpy else X

    def combinations(self) -> Tensor | None:
        """All points of the box that the constraint allows (m, d); None if they are more than 100,000."""
        if len(self.choices) < len(self.lower) or math.prod(map(len, self.choices.values())) > _MOST_COMBINATIONS:
            return None
        X = torch.cartesian_prod(*(self.choices[column] for column in range(len(self.lower)))).view(-1, len(self.lower))
        return X[self.allows(X)]

    def clip(self, X: Tensor) -> Tensor:
        """The nearest point of the box for every point (..., d), with the nearest allowed values."""
        X = torch.minimum(torch.maximum(X, self.lower), self.upper)
        for column, values in self.choices.items():
            gap = (X[..., column].unsqueeze(-1) - values).abs()
            X[..., column] = values[gap.argmin(-1)]
        return X

    def allows(self, X: Tensor) -> Tensor:
        """Whether the constraint allows the points (m, d): (m,)."""
        if self.constraint is None or not len(X):
            return torch.ones(len(X), dtype=torch.bool, device=X.device)
        # A copy: the function may work in place.
        answer = self.constraint(self.to_caller(X.clone()))
        mask = torch.as_tensor(np.asarray(answer.cpu() if isinstance(answer, Tensor) else answer))
        if mask.shape != (len(X),) or mask.dtype != torch.bool:
            got = f"{mask.dtype} of shape {tuple(mask.shape)}"
            raise ValueError(f"the constraint must return {len(X)} booleans, one for every point, got {got}")
        return mask.to(X.device)

    def uniform(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform points of the box that the constraint allows (count, d)."""
        return self._rejection(lambda size: self._uniform(size, generator), count)

    def propose(
        self, count: int, centres: Tensor, weights: Tensor, spread: Tensor, explore: float, generator: torch.Generator
    ) -> Tensor:
        """Points (count, d): the share ``explore`` uniform, the others normal around centres drawn by their weights.

        centres: (n, d).  weights: (n,) non-negative, not all zero.  spread: standard deviations (d,), which every point
        divides by a factor between 1 and 32.
        """

        def draw(size: int) -> Tensor:
            far = self._uniform(round(explore * size), generator)
            if (rest := size - len(far)) == 0:
                return far
            index = torch.multinomial(weights.cpu(), rest, replacement=True, generator=_on_cpu(generator))
            near = centres[index.to(centres.device)]
            nearness = _NEAREST ** _uniform((rest, 1), generator, near.device)
            steps = nearness * spread * normal(tuple(near.shape), generator, torch.float64, near.device)
            near = self.clip(near + steps)
            for column in self.choices:
                other = self._uniform(rest, generator)[:, column]
                moved = _uniform((rest,), generator, near.device) < _RESAMPLED
                near[:, column] = torch.where(moved, other, near[:, column])
            return torch.cat([far, near])[permutation(size, generator, near.device)]

        return self._rejection(draw, count)

    def keys(self, X: Tensor) -> list[bytes]:
        """A digest of every point (m, d), equal for points that are the same up to the resolution.

        Two sums of whole multiples of the resolution with random factors, modulo 2^64: 16 bytes.
        """
        numbers = ((X - self.lower) / (self.width * _RESOLUTION)).round().long().cpu().numpy().view(np.uint64)
        factors = np.random.default_rng(0).integers(2**64, size=(numbers.shape[1], 2), dtype=np.uint64)
        digests: list[bytes] = (numbers @ factors).view("V16").ravel().tolist()
        return digests

    def is_among(self, X: Tensor, points: Tensor) -> Tensor:
        """Which of X (m, d) are within the resolution of one of ``points`` (k, d): (m,). Time O(m k d) at most."""
        keys, reach = set(self.keys(points)), self.width * _RESOLUTION
        # Rounding can move a point into the next cell, so that its key changes.
        return torch.tensor(
            [
                key in keys or bool(((points - x).abs() <= reach).all(1).any())
                for key, x in zip(self.keys(X), X, strict=True)
            ],
            dtype=torch.bool,
            device=X.device,
        )

    def _uniform(self, count: int, generator: torch.Generator) -> Tensor:
        X = self.lower + (self.upper - self.lower) * _uniform((count, len(self.lower)), generator, self.lower.device)
        for column, values in self.choices.items():
            index = torch.randint(len(values), (count,), generator=generator, device=generator.device)
            X[:, column] = values[index.to(values.device)]
        return X

    def _rejection(self, draw: Callable[[int], Tensor], count: int) -> Tensor:
        """The first ``count`` draws that the constraint allows."""
        parts, missing = [], count
        for _ in range(_ATTEMPTS):
            X = draw(missing if self.constraint is None else max(missing, _AT_ONCE))
            parts.append(X[self.allows(X)][:missing])
            missing -= len(parts[-1])
            if missing == 0:
                return torch.cat(parts)
        tried = _ATTEMPTS * max(count, _AT_ONCE)
        raise ValueError(
            f"the constraint allowed {count - missing} of {tried:,} points, {count} are needed: give tighter bounds, "
            "or candidates= that satisfy it"
        )


def _require_function(constraint: Any) -> None:
    if not (constraint is None or callable(constraint)):
        raise TypeError(f"constraint must be a function of inputs (m, d), got {type(constraint).__name__}")


def _read_choices(choices: Any) -> dict[int, list[Any]]:
    """Check the kinds of the columns and of their lists of values."""
    advice = "choices is a dict {column: values}, such as {2: [0, 1, 2]}"
    if not (choices is None or isinstance(choices, Mapping)):
        raise TypeError(f"{advice}; got {type(choices).__name__}")
    read = {}
    for column, values in (choices or {}).items():
        number = whole_number(column, f"{advice}; the column", -sys.maxsize)
        try:
            read[number] = list(values)
        except TypeError:
            raise TypeError(f"{advice}; the values of column {number} are {values!r}") from None
    return read


def read_bounds(bounds: Array) -> Matrix:
    """Check that bounds are a matrix of finite numbers."""
    return read_matrix(bounds, "bounds", advice="bounds must be finite")


def read_candidates(candidates: Array, columns: int | None = None, like: Tensor | None = None) -> Matrix:
    """Check inputs (c, d) to choose from."""
    if hasattr(candidates, "toarray"):
        kind = type(candidates).__name__
        raise TypeError(f"candidates are sparse ({kind}): use candidates.toarray(), or screen for a sparse pool")
    matrix = read_matrix(candidates, "candidates", columns, like)
    if not len(matrix.X):
        raise ValueError("candidates have no rows: give at least one")
    return matrix


def _uniform(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).to(device)


def _on_cpu(generator: torch.Generator) -> torch.Generator:
    """A generator of the CPU, seeded by this one unless it is one."""
    if generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
