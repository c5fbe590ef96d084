"""The sets of rows and fields of `low_noise`: four functions with little noise or none, and bike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.common.uci import uci
from benchmarks.trust.cases import Part
from benchmarks.trust.low_noise_likelihoods import Reference

NOISES = (0.0, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2)
# Rows of the tables, by noise: one in float64 and one in float32 for every generator, many small ones, two of 5,000.
ROWS = {
    "smooth": ((200, 1200), (400, 1000), (1200, 300), (600, 2000), (1500, 500), (800, 1200)),
    "matern": ((300, 1000), (1200, 200), (500, 1500), (2000, 400), (1000, 800), (5000, 600)),
    "friedman": ((500, 1200), (1200, 300), (300, 2000), (1000, 600), (5000, 400), (1500, 800)),
    "rough": ((400, 800), (200, 1200), (1500, 300), (1200, 500), (600, 1000), (2000, 200)),
}
# Columns and numbers of rows of the sets without noise, by function.
FREE = {
    "smooth": (2, (500, 2000, 20_000)),
    "matern": (6, (500, 2000, 5000, 20_000)),
    "friedman": (20, (500, 2000, 20_000)),
}
HELD_OUT = 500


@dataclass(frozen=True)
class TableSet:
    """Rows to learn from, and rows held out, NumPy arrays in the dtype of the set."""

    name: str
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    doors: tuple[str, ...] = ("GP", "GPRegressor", "cli")

    @property
    def rows(self) -> int:
        return len(self.y)

    @cached_property
    def given(self) -> Reference:
        """In the dtype of the set."""
        return Reference(torch.from_numpy(self.X), torch.from_numpy(self.y))

    @cached_property
    def double(self) -> Reference:
        """In float64, as a file of text is read."""
        if self.X.dtype == np.float64:
            return self.given
        return Reference(self.given.X.to(torch.float64), self.given.y.to(torch.float64))


@dataclass(frozen=True)
class FieldSet:
    """A field on a grid; ``values`` has NaN where cells are held out or missing, ``whole`` has them all."""

    name: str
    coordinates: dict[str, np.ndarray]
    values: np.ndarray
    whole: np.ndarray

    doors = ("fill",)

    @property
    def rows(self) -> int:
        return int(np.isfinite(self.values).sum())


def sets(all_rows: bool) -> Iterator[tuple[str, int, Callable[[], TableSet | FieldSet]]]:
    """Name, rows and maker of every set."""
    seed = 0
    for generator, choices in ROWS.items():
        for noise, (double, single) in zip(NOISES, choices, strict=True):
            for rows, dtype in ((double, np.float64), (single, np.float32)):
                name = f"{generator}-{noise:.0e}-{rows}-{np.dtype(dtype).name}"
                seed += 1

                def make(name=name, generator=generator, noise=noise, rows=rows, dtype=dtype, seed=seed) -> TableSet:
                    return _table(name, generator, noise, rows, dtype, seed)

                yield name, rows, make
    for generator in ROWS:
        for i, noise in enumerate(NOISES):
            dtype = (np.float64, np.float32)[i % 2]
            sizes = ((20, 15), (40, 30), (45, 42))[(i + len(generator)) % 3]
            name = f"field-{generator}-{noise:.0e}-{sizes[0]}x{sizes[1]}-{np.dtype(dtype).name}"
            seed += 1

            def make_field(
                name=name, generator=generator, noise=noise, sizes=sizes, dtype=dtype, seed=seed
            ) -> FieldSet:
                return _field(name, generator, noise, sizes, dtype, seed)

            yield name, round(0.7 * math.prod(sizes)), make_field
    for generator, (columns, sizes) in FREE.items():
        seed += 1
        for rows, dtype in product(sizes, (np.float64, np.float32)):
            name = f"free-{generator}-{columns}d-{rows}-{np.dtype(dtype).name}"

            def make_free(
                name=name, generator=generator, rows=rows, dtype=dtype, seed=seed, columns=columns
            ) -> TableSet:
                return replace(_table(name, generator, 0.0, rows, dtype, seed, columns), doors=("default",))

            yield name, rows, make_free
    for rows in (2500, 3000, *([None] if all_rows else [])):
        for dtype in ("float64", "float32"):
            name = f"bike-{rows or 'all'}-{dtype}"
            yield name, rows or 0, lambda name=name, rows=rows, dtype=dtype: _bike(name, rows, dtype)


def _bike(name: str, rows: int | None, dtype: str) -> TableSet:
    data = uci("bike", dtype=getattr(torch, dtype), rows=rows)
    X_test, y_test = data.X_test[:HELD_OUT].numpy(), data.y_test[:HELD_OUT].numpy()
    found = TableSet(name, data.X.numpy(), data.y.numpy(), X_test, y_test)
    return replace(found, doors=("default",)) if rows == 2500 else found


def _table(
    name: str, generator: str, noise: float, rows: int, dtype: Any, seed: int, columns: int | None = None
) -> TableSet:
    rng = np.random.default_rng(seed)
    d = columns or {"smooth": 2, "matern": 2 + seed % 5, "friedman": 10, "rough": 3}[generator]
    X = rng.random((rows + HELD_OUT, d))
    f = _function(generator, X, rng)
    y = f + noise * f.std() * rng.normal(size=len(f))
    X, y = X.astype(dtype), y.astype(dtype)
    return TableSet(name, X[:rows], y[:rows], X[rows:], y[rows:])


def _field(name: str, generator: str, noise: float, sizes: tuple[int, int], dtype: Any, seed: int) -> FieldSet:
    rng = np.random.default_rng(seed)
    time_, place = np.linspace(0.0, 1.0, sizes[0]), np.linspace(0.0, 1.0, sizes[1])
    X = np.stack(np.meshgrid(time_, place, indexing="ij"), -1).reshape(-1, 2)
    if generator == "friedman":
        X = np.concatenate([X, np.full((len(X), 8), 0.5)], 1)
    f = _function(generator, X, rng)
    whole = (f + noise * f.std() * rng.normal(size=len(f))).reshape(sizes).astype(dtype)
    values = whole.copy()
    values[rng.random(sizes) < 0.2] = np.nan
    low = [p // 3 for p in sizes]
    values[low[0] : low[0] + sizes[0] // 4, low[1] : low[1] + sizes[1] // 4] = np.nan
    return FieldSet(name, {"time": 10.0 * time_, "place": 100.0 * place}, values, whole)


def _function(generator: str, X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values (n,) of a function at X (n, d) in the unit cube."""
    if generator == "smooth":
        return np.sin(6.0 * X[:, 0]) + X[:, 1] ** 2
    if generator == "matern":
        d = X.shape[1]
        part = Part("matern-3/2", tuple(range(d)), torch.full((d,), 0.4 * d**0.5, dtype=torch.float64), 1.0)
        K = part.covariance(torch.from_numpy(X), torch.from_numpy(X))
        K.diagonal().add_(1e-12)
        return (torch.linalg.cholesky(K) @ torch.from_numpy(rng.normal(size=len(X)))).numpy()
    if generator == "friedman":
        first = 10.0 * np.sin(math.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2
        return first + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    # Steps, a kink and a fast wave.
    return np.floor(3.0 * X[:, 0]) + np.abs(X[:, 1] - 0.4) + 0.3 * np.sin(40.0 * X[:, -1])
