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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathgp.compute.inputs import Array, read_numbers, real_number, whole_number
from pathgp.compute.random import as_generator, permutation
from pathgp.decisions.pool import Pool, Rows
from pathgp.decisions.surrogate import Surrogate
from pathgp.decisions.top import assign_distinct, top_rows
from pathgp.models import GP
from pathgp.plots import COLOURS, tidy
from pathgp.posterior.table import Posterior

METHODS = ("thompson", "top", "greedy", "ucb", "random")


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
        pool: inputs (c, d): an array, a tensor, a data frame of numbers, a memory-mapped array or a sparse matrix. Rows
            have the numbers 0 to c - 1, whatever the index of a frame.
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
    top, beta = _read_options(method, top, width)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if method == "random":
        return np.asarray(left[permutation(len(left), as_generator(generator), left.device)[:count]])
    if not isinstance(post, Posterior):
        raise TypeError(f"post must be a posterior, such as gp.condition(X, y); got {type(post).__name__}")
    if pool.shape[1] != (columns := post.system.X.shape[1]):
        raise ValueError(f"the pool has {pool.shape[1]} columns, the model was given {columns}")
    sign = -1.0 if minimise else 1.0
    blocks = pool.blocks(left, post)
    if method in ("greedy", "ucb"):

        def score(X: Tensor) -> Tensor:
            mean = sign * post.mean(X)
            return mean + beta * post.variance(X).sqrt() if beta else mean

        return np.asarray(top_rows(((rows, score(X).unsqueeze(0)) for rows, X in blocks), count)[1][0].cpu())
    k = count if top is None else top
    length = count if method == "thompson" else max(k, count)
    _, best = top_rows(((rows, sign * post.paths(X)) for rows, X in blocks), length)
    return _round_robin(best.cpu(), count) if method == "thompson" else _most_frequent(best.cpu(), k, count)


def _read_options(method: str, top: int | None, width: float) -> tuple[int | None, float]:
    """Check the options of a batch; return k of "top", and the standard deviations that "ucb" adds to the mean."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    beta = real_number(width, "width")
    return None if top is None else whole_number(top, "top", 1), beta if method == "ucb" else 0.0


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
    minimise: bool = False
    posterior: Posterior | None = None

    @property
    def best(self) -> tuple[int, float]:
        """Number and value of the best row."""
        if np.isnan(self.values).all():
            raise ValueError("no measurement has a finite value yet")
        place = int(np.nanargmin(self.values) if self.minimise else np.nanargmax(self.values))
        return int(self.rows[place]), float(self.values[place])

    def recall(self, truth: Array, k: int) -> tuple[Rows, NDArray[np.float64]]:
        """Evaluations after every batch, and the share of the k best rows of the pool that were measured by then.

        truth: values of the whole pool (c,), NaN for rows without one, which are not among the best. With ties at the
        k-th value, any k of the tied rows count.
        """
        values = np.asarray(truth, dtype=np.float64) * (-1.0 if self.minimise else 1.0)
        if values.ndim != 1 or len(values) <= self.rows.max(initial=-1):
            least = int(self.rows.max(initial=-1)) + 1
            raise ValueError(
                f"truth must hold a value for every row of the pool, at least ({least},); got shape {values.shape}"
            )
        known = np.sort(values[~np.isnan(values)])
        if not len(known):
            raise ValueError("truth has no value: all are NaN")
        k = min(whole_number(k, "k", 1), len(known))
        # Comparisons with NaN are false.
        is_top = values[self.rows] >= known[-k]
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
    resume: Screening | None = None,
    callback: Callable[[Screening], object] | None = None,
    generator: torch.Generator | None = None,
) -> Screening:
    """Measure rows of a pool in batches, each chosen by the posterior given the earlier ones.

    Ends early when all rows have been measured. Pool and options are checked before the first measurement; for this a
    dense pool is read once. If an error or Ctrl-C ends the call, the attribute ``screening`` of the exception holds the
    measurements so far.

    Args:
        gp: the model; fits change its hyperparameters.
        pool: inputs (c, d), as in `select_batch`.
        measure: function of row numbers (m,) that returns their values (m,); NaN for a failed measurement.
        batch: rows of a batch.
        rounds: number of batches, the first one and those of ``resume`` included.
        method: how rows are chosen, see `select_batch`; ``top`` and ``width`` as there.
        initial: number of random rows of the first batch, by default ``batch``; or the numbers of its rows.
            Not used to continue from ``resume``.
        minimise: small values are wanted.
        samples: number of paths.
        refit, fit, condition: as in `ThompsonSampler`.
        resume: an earlier result for this pool, to continue from; its rows are not measured again.
        callback: called with the `Screening` so far after every batch.
        generator: source of all draws.
    """
    generator, rows = as_generator(generator), Pool(pool)
    model = Surrogate(gp, refit, None, fit, condition, generator)
    batch, rounds = whole_number(batch, "batch", 1), whole_number(rounds, "rounds", 1)
    options: dict[str, Any] = {"top": top, "minimise": minimise, "width": width}
    _read_options(method, top, width)
    whole_number(samples, "samples", 1 if method in ("thompson", "top") else 0)
    if not callable(measure):
        raise TypeError(
            f"measure must be a function of row numbers, got {type(measure).__name__}: "
            "values y that are known already are lambda rows: y[rows]"
        )
    chosen = _first_batch(batch if initial is None else initial, rows, generator)
    rows.check()
    if method != "random":
        # The kernel must accept rows of this kind and width.
        row = rows.block(torch.tensor([0]), rows.device)
        with torch.no_grad():
            gp.kernel(row, row)
    result = _start(resume, rows.shape[0], method, minimise)
    known = np.isfinite(result.values)
    if known.any():
        model.add(rows.block(torch.from_numpy(result.rows[known]), rows.device), _values_on(rows, result.values[known]))
    try:
        for number in range(int(result.batches.max(initial=-1)) + 1, rounds):
            if number and len(model.y) and method != "random":
                result = replace(result, posterior=model.posterior(samples))
                assert result.posterior is not None
                chosen = select_batch(result.posterior, rows, batch, method, exclude=result.rows, **options)
            elif number:
                left = _rows_left(rows, result.rows)
                chosen = np.asarray(left[permutation(len(left), generator, left.device)[:batch]])
            if not len(chosen):
                break
            values = _read_values(measure(chosen.copy()), len(chosen))
            result = replace(
                result,
                rows=np.append(result.rows, chosen),
                values=np.append(result.values, values),
                batches=np.append(result.batches, np.full(len(chosen), number)),
            )
            fine = np.isfinite(values)
            if fine.any():
                model.add(rows.block(torch.from_numpy(chosen[fine]), rows.device), _values_on(rows, values[fine]))
            if callback is not None:
                callback(result)
    except BaseException as error:
        if len(result.rows):
            vars(error)["screening"] = result
            error.add_note(
                f"{len(result.rows)} measurements were made before: continue with screen(..., resume=error.screening), "
                "where error is this exception, sys.last_value in an interactive session"
            )
        raise
    return result


def _first_batch(initial: int | Sequence[int], pool: Pool, generator: torch.Generator) -> Rows:
    """The rows of the first batch: this number of random ones, or those with these numbers."""
    if not pool.shape[0]:
        raise ValueError("the pool has no rows")
    if np.ndim(initial) == 0:
        count = whole_number(initial, "initial", 1)
        return np.asarray(permutation(pool.shape[0], generator, torch.device("cpu"))[:count])
    rows = np.asarray(read_numbers(initial, "initial", pool.shape[0]))
    if not len(rows):
        raise ValueError("initial has no rows: leave it out for a random first batch")
    numbers, times = np.unique(rows, return_counts=True)
    if times.max() > 1:
        raise ValueError(f"initial has row {numbers[times.argmax()]} more than once: no row is measured twice")
    return rows


def _start(resume: Screening | None, count: int, method: str, minimise: bool) -> Screening:
    """An empty result, or the one to continue from."""
    none = np.empty(0, dtype=np.int64)
    if resume is None:
        return Screening(method, none, np.empty(0), none, minimise, None)
    if not isinstance(resume, Screening):
        raise TypeError(f"resume must be a Screening, the result of an earlier call; got {type(resume).__name__}")
    read_numbers(resume.rows, "the rows of resume", count)
    if not len(resume.rows) == len(resume.values) == len(resume.batches):
        lengths = f"{len(resume.rows)}, {len(resume.values)} and {len(resume.batches)}"
        raise ValueError(f"resume must have a value and a batch for every row, got lengths {lengths}")
    return replace(resume, method=method, minimise=minimise, posterior=None)


def _read_values(values: Any, count: int) -> NDArray[np.float64]:
    """What ``measure`` returned, NaN for values that are not finite."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
        if array.dtype.kind not in "fiubO":
            raise TypeError(f"the values are of dtype {array.dtype}")
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"measure must return {count} numbers, one for every row: {error}") from error
    if numbers.shape != (count,):
        hint = "; use values[:, 0]" if numbers.shape == (count, 1) else ""
        raise ValueError(f"measure must return {count} values, one for every row, got shape {numbers.shape}{hint}")
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _values_on(pool: Pool, values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values).to(pool.device)
