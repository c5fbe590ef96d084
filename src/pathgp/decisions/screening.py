"""Screening: find the best rows of a large pool with few measurements.

A pool has 10^4 to 10^7 rows, such as the fingerprints of a library of molecules. It is read a block of rows at a time,
from a dense array, a memory-mapped file or a sparse matrix of SciPy. Batches of rows are chosen by one of

    thompson   the best row of every path in turn, then the second best, ...
    top        the probability of being among the best k rows of the pool, counted over the paths
    greedy     the posterior mean
    ucb        the posterior mean plus ``width`` standard deviations
    random     no model, for comparison
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.inputs import Array, read_matrix, read_numbers, real_number, whole_number
from pathgp.compute.memory import spans
from pathgp.compute.random import as_generator, permutation
from pathgp.decisions.surrogate import Surrogate
from pathgp.decisions.top import assign_distinct, top_rows
from pathgp.models import GP
from pathgp.plots import COLOURS, tidy
from pathgp.posterior.table import Posterior

METHODS = ("thompson", "top", "greedy", "ucb", "random")
# Largest number of rows of a block, dense and sparse, and the share of the memory budget for its inputs and paths.
_ROWS, _SPARSE_ROWS = 16_384, 65_536
_SHARE = 0.1

Rows = NDArray[np.int64]


class Pool:
    """Rows of inputs (c, d): an array, a tensor or a sparse matrix of SciPy; `block` gives some of them as a tensor."""

    def __init__(self, rows: Any) -> None:
        if getattr(rows, "ndim", None) != 2:
            raise ValueError(f"the pool must have two dimensions (rows, columns), got {getattr(rows, 'shape', rows)!r}")
        self.rows = read_matrix(rows, "pool").X if hasattr(rows, "tocsr") else rows
        self.shape: tuple[int, int] = tuple(rows.shape)
        self.device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")

    def block(self, index: Tensor, device: torch.device) -> Tensor:
        """The rows with these numbers (b, d); sparse ones stay sparse."""
        part = self.rows[index.to(self.rows.device) if isinstance(self.rows, Tensor) else index.numpy()]
        block = part.to(device) if isinstance(part, Tensor) else torch.as_tensor(part, device=device)
        return block if block.is_floating_point() else block.to(torch.float64)

    def blocks(self, index: Tensor, post: Posterior) -> Iterator[tuple[Tensor, Tensor]]:
        """Row numbers (b,) and rows (b, d), in blocks that fit the memory budget of the posterior."""
        device = post.system.X.device
        # Hashes of sparse rows are drawn once for every block: large blocks take less time.
        is_sparse = isinstance(self.rows, CountRows)
        width = 8 * (2 * post.num_samples if is_sparse else self.shape[1] + 2 * post.num_samples)
        most = _SPARSE_ROWS if is_sparse else _ROWS
        step = max(1, min(most, int(_SHARE * post.settings.compute.budget(device)) // width))
        for part in spans(len(index), step):
            yield index[part], self.block(index[part], device)


@torch.no_grad()
def select_batch(
    post: Posterior,
    pool: Any,
    count: int,
    method: str = "thompson",
    *,
    top: int | None = None,
    exclude: Sequence[int] | Array | None = None,
    minimise: bool = False,
    width: float = 2.0,
    generator: torch.Generator | None = None,
) -> Rows:
    """Return the numbers of ``count`` rows of a pool to measure next, the most wanted first.

    Time O(c s (n + features)) for c rows and s paths, for "greedy" O(c n); memory a block of rows and O(s count).

    Args:
        post: the posterior given the measurements so far.
        pool: inputs (c, d): an array, a tensor, a memory-mapped array or a sparse matrix.
        count: number of rows; all that are left if there are fewer.
        method: "thompson", "top", "greedy", "ucb" or "random".
        top: k of the method "top", by default ``count``.
        exclude: numbers of rows that must not be chosen, such as measured ones.
        minimise: small values are wanted.
        width: standard deviations that "ucb" adds to the mean.
        generator: source of the draws of "random".
    """
    pool = pool if isinstance(pool, Pool) else Pool(pool)
    count, left = whole_number(count, "count", 1), _rows_left(pool, exclude)
    count = min(count, len(left))
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if method == "random":
        return np.asarray(left[permutation(len(left), as_generator(generator), left.device)[:count]])
    sign = -1.0 if minimise else 1.0
    blocks = pool.blocks(left, post)
    if method in ("greedy", "ucb"):
        beta = real_number(width, "width") if method == "ucb" else 0.0

        def score(X: Tensor) -> Tensor:
            mean = sign * post.mean(X)
            return mean + beta * post.variance(X).sqrt() if beta else mean

        return np.asarray(top_rows(((rows, score(X).unsqueeze(0)) for rows, X in blocks), count)[1][0].cpu())
    k = count if top is None else whole_number(top, "top", 1)
    length = count if method == "thompson" else max(k, count)
    _, best = top_rows(((rows, sign * post.paths(X)) for rows, X in blocks), length)
    return _round_robin(best.cpu(), count) if method == "thompson" else _most_frequent(best.cpu(), k, count)


def _round_robin(best: Tensor, count: int) -> Rows:
    """The best row of every path, then the best rows that are left, and so on; best: (s, k) in descending order."""
    chosen: list[int] = []
    options = best.tolist()
    while len(chosen) < count:
        found = [row for row in assign_distinct(options, chosen) if row is not None]
        chosen += found[: count - len(chosen)]
    return np.array(chosen, dtype=np.int64)


def _most_frequent(best: Tensor, k: int, count: int) -> Rows:
    """The rows that are most often among the first k of a path; ties by the sum of their ranks from below."""
    rows, place = best.unique(return_inverse=True)
    ranks = torch.arange(best.shape[1], 0, -1, dtype=torch.float64).expand_as(best)
    wins, sums = torch.zeros(2, len(rows), dtype=torch.float64)
    first = place[:, :k].flatten()
    wins.index_add_(0, first, torch.ones(len(first), dtype=torch.float64))
    sums.index_add_(0, place.flatten(), ranks.flatten())
    # The sums of ranks are made smaller than one win.
    order = (wins + sums / (1.0 + sums.sum())).argsort(descending=True, stable=True)
    return np.asarray(rows[order[:count]])


def _rows_left(pool: Pool, exclude: Sequence[int] | Array | None) -> Tensor:
    left = torch.ones(pool.shape[0], dtype=torch.bool)
    left[read_numbers([] if exclude is None else exclude, "exclude", pool.shape[0])] = False
    return left.nonzero().flatten()


@dataclass
class Screening:
    """The result of `screen`.

    rows: numbers of the measured rows, in their order (m,).  values: their values, NaN for failures (m,).  batches: the
    number of the batch of every row (m,).  posterior: given all measurements but those of the last batch, or None.
    """

    method: str
    rows: Rows
    values: NDArray[np.float64]
    batches: Rows
    minimise: bool
    posterior: Posterior | None

    @property
    def best(self) -> tuple[int, float]:
        """Number and value of the best row."""
        if np.isnan(self.values).all():
            raise ValueError("no measurement has a finite value yet")
        place = int(np.nanargmin(self.values) if self.minimise else np.nanargmax(self.values))
        return int(self.rows[place]), float(self.values[place])

    def recall(self, truth: Array, k: int) -> tuple[Rows, NDArray[np.float64]]:
        """Evaluations after every batch, and the share of the k best rows of the pool that were measured by then.

        truth: values of the whole pool (c,). With ties at the k-th value, any k of the tied rows count.
        """
        values = np.asarray(truth, dtype=np.float64) * (-1.0 if self.minimise else 1.0)
        k = min(whole_number(k, "k", 1), len(values))
        threshold = np.sort(values)[-k]
        is_top = values[self.rows] >= threshold
        ends = np.flatnonzero(np.diff(self.batches, append=self.batches[-1] + 1)) + 1
        return ends, np.array([min(k, int(is_top[:end].sum())) / k for end in ends])

    def draw(self, axes: Any, truth: Array, k: int, colour: str = COLOURS[0], label: str | None = None) -> None:
        """Draw the recall against evaluations into matplotlib axes."""
        places, shares = self.recall(truth, k)
        axes.plot(places, 100 * shares, "o-", color=colour, lw=1.6, ms=3, label=label or self.method)
        axes.set_title(f"share of the top {k:,} found, %", fontsize=9, loc="left")
        axes.set_xlabel("evaluations", fontsize=8)
        tidy(axes)

    def __repr__(self) -> str:
        failed = int(np.isnan(self.values).sum())
        tail = f", {failed} failed" if failed else ""
        if failed < len(self.values):
            row, value = self.best
            tail = f", best {value:.6g} in row {row}{tail}"
        batches = len(np.unique(self.batches))
        return f"Screening({self.method}: {len(self.rows):,} rows in {batches} batches{tail})"


def screen(
    gp: GP,
    pool: Any,
    measure: Callable[[Rows], Array],
    *,
    batch: int = 500,
    rounds: int = 6,
    method: str = "thompson",
    top: int | None = None,
    initial: int | Sequence[int] | None = None,
    minimise: bool = False,
    width: float = 2.0,
    samples: int = 64,
    refit: float | None = 1.5,
    fit: Mapping[str, Any] | None = None,
    condition: Mapping[str, Any] | None = None,
    callback: Callable[[Screening], object] | None = None,
    generator: torch.Generator | None = None,
) -> Screening:
    """Measure rows of a pool in batches, each chosen by the posterior given the earlier ones.

    Ends early when all rows have been measured.

    Args:
        gp: the model; fits change its hyperparameters.
        pool: inputs (c, d), as in `select_batch`.
        measure: function of row numbers (m,) that returns their values (m,); NaN for a failed measurement.
        batch: rows of a batch.
        rounds: number of batches, the first one included.
        method: how rows are chosen, see `select_batch`; ``top`` and ``width`` as there.
        initial: number of random rows of the first batch, by default ``batch``; or the numbers of its rows.
        minimise: small values are wanted.
        samples: number of paths.
        refit, fit, condition: as in `ThompsonSampler`.
        callback: called with the `Screening` so far after every batch.
        generator: source of all draws.
    """
    generator, rows = as_generator(generator), Pool(pool)
    model = Surrogate(gp, refit, None, fit, condition, generator)
    batch, rounds = whole_number(batch, "batch", 1), whole_number(rounds, "rounds", 1)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    none = np.empty(0, dtype=np.int64)
    result = Screening(method, none, np.empty(0), none, minimise, None)
    if initial is None or isinstance(initial, int):
        count = batch if initial is None else whole_number(initial, "initial", 1)
        chosen = np.asarray(permutation(rows.shape[0], generator, torch.device("cpu"))[:count])
    else:
        chosen = np.asarray(read_numbers(initial, "initial", rows.shape[0]))
    for number in range(rounds):
        if number and len(model.y) and method != "random":
            result.posterior = model.posterior(samples)
            options: dict[str, Any] = {"top": top, "minimise": minimise, "width": width}
            chosen = select_batch(result.posterior, rows, batch, method, exclude=result.rows, **options)
        elif number:
            left = _rows_left(rows, result.rows)
            chosen = np.asarray(left[permutation(len(left), generator, left.device)[:batch]])
        if not len(chosen):
            break
        values = np.asarray(measure(chosen), dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        if values.shape != chosen.shape:
            raise ValueError(f"measure must return {len(chosen)} values, one for every row, got shape {values.shape}")
        result.rows, result.values = np.append(result.rows, chosen), np.append(result.values, values)
        result.batches = np.append(result.batches, np.full(len(chosen), number))
        fine = np.isfinite(values)
        if fine.any():
            inputs = rows.block(torch.from_numpy(chosen[fine]), rows.device)
            model.add(inputs, torch.from_numpy(values[fine]).to(rows.device))
        if callback is not None:
            callback(result)
    return result
