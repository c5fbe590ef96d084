"""Stochastic gradient descent on the primal objective, with random features for the regulariser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.random import partition
from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms

# Epochs of steps between two products that measure the residual.
_CHECK_EVERY = 10.0
# A residual this much above the best one means that the step is too large.
_GROWTH = 4.0
_MAX_HALVINGS = 25
# The average of the iterates gives iterate t a weight of about t^3: an average of the tail that needs no plan
# of how long the run will be (Shamir and Zhang 2013).
_TAIL = 3.0


@dataclass(frozen=True)
class SGD(Solver):
    """Stochastic gradient descent (thesis, chapter 3; Lin et al. 2023).

        minimise  1/2 |b - K a|^2 + sigma^2 / 2 |a - delta|_K^2        with solution H^-1 (b + Sigma delta)

        for each batch I of rows, with fresh random features Phi:
            u = a + rho v
            g = K[:, I] (K[I, :] u - b[I]) / |I| + sigma^2 / n Phi Phi^T (u - delta)
            v = rho v - step clip(g)
            a = a + v
            average = average + 4 / (t + 3) (a - average)

    The noise of a posterior sample belongs into ``delta``, where it does not add to the gradient's variance.
    With one noise variance per row, row i of the batch is weighted by mean(sigma^2) / sigma_i^2.

    Gradients do not vanish at the solution, so that small tolerances are out of reach: prefer SDD, which has
    the same cost, or AP. The method needs a kernel with random features.

    Parameters
    ----------
    batch_size: rows per step.
    step_size: beta n of the thesis; None is 0.5 for columns without and 0.1 for columns with ``delta``.
    momentum: rho, in [0, 1).
    features: number of random features per step.
    clip: largest norm of a column's gradient, in units of the root mean square of its right-hand side.

    A growing residual restores the last good iterate with half the step. Time per epoch: one product with H,
    with features / (2 batch_size) of a product on top. Memory O(n s + n features).
    """

    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    features: int = 100
    clip: float = 0.1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.features < 1:
            raise ValueError(f"batch_size and features must be at least 1, got {self.batch_size} and {self.features}")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be None or a positive number, got {self.step_size}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")

    def _solve(self, run: Run) -> Solution:
        n = run.b.shape[0]
        weights, step, largest = row_weights(run), self._steps(run), self.clip / math.sqrt(n)
        batches = math.ceil(n / self.batch_size)
        cost = 2 * run.H.cost(math.ceil(n / batches))
        parts, features = _batches(run, batches), _features(run, self.features)
        a, v, average = run.start.clone(), torch.zeros_like(run.start), run.start.clone()
        best = column_norms(run.initial_residual)
        good = (run.start, run.start, best)
        halvings, t = 0, 0

        def finish(status: Status) -> Solution:
            note = f"{batches} batches of {math.ceil(n / batches)}"
            note += f", {halvings} halvings of the step" if halvings else ""
            return run.finish(good[1], status, repr(self), note, good[2])

        while (steps := _affordable(run, cost)) > 0:
            for _ in range(steps):
                u = a + self.momentum * v
                g = gradient(run, next(parts), u, weights, next(features))
                g *= torch.clamp(largest / torch.linalg.vector_norm(g, dim=0), max=1.0)
                v = self.momentum * v - step * g
                a += v
                t += 1
                average.lerp_(a, min(1.0, (_TAIL + 1) / (t + _TAIL)))
            run.iterations += steps
            norms = run.record(column_norms(run.residual(average)), exact=True)
            if bool((norms <= _GROWTH * best).all()):
                good = (a.clone(), average.clone(), norms)
                best = torch.minimum(best, norms)
                if run.confirmed(good[1], norms):
                    return finish(Status.CONVERGED)
            elif halvings == _MAX_HALVINGS:
                return finish(Status.DIVERGED)
            else:
                a, v, average, t = good[0].clone(), torch.zeros_like(v), good[1].clone(), 0
                step, halvings = step / 2, halvings + 1
        return finish(Status.BUDGET_EXHAUSTED)

    def _steps(self, run: Run) -> Tensor:
        """One step per column; a column without a right-hand side has the solution zero and stays there."""
        step = torch.full_like(run.scale, 0.5 if self.step_size is None else self.step_size)
        if self.step_size is None and run.delta is not None:
            step.masked_fill_((run.delta != 0).any(0), 0.1)
        return step.masked_fill(run.zero, 0.0)


def gradient(run: Run, index: Tensor, u: Tensor, weights: Tensor, phi: Tensor) -> Tensor:
    """An unbiased estimate of 1/n times the gradient at u, from the rows ``index`` and random features phi (n, q)."""
    noise = (run.H.noise[index].unsqueeze(1) if run.H.noise.ndim else run.H.noise).to(u.dtype)
    # H holds the noise on its diagonal, K does not.
    error = run.rows(index, u) - noise * u[index] - run.targets[index]
    error *= weights[index] / len(index)
    g = run.columns(index, error).index_add_(0, index, -noise * error)
    away = u if run.delta is None else u - run.delta
    pull = (phi.T @ away) * (run.H.noise.mean() / len(g)).to(u.dtype)
    return g.addmm_(phi, pull)


def row_weights(run: Run) -> Tensor:
    """mean(sigma^2) / sigma_i^2 as a column: (n, 1), all ones for one common noise."""
    noise = run.H.noise
    if noise.ndim == 0:
        return torch.ones_like(run.b[:, :1])
    if not bool((noise > 0).all()):
        raise ValueError("SGD divides by the noise of every row, and some are zero: use AP or CG")
    return (noise.mean() / noise).to(run.b.dtype).unsqueeze(1)


def _affordable(run: Run, cost: float) -> int:
    """Steps up to the next check, which the budget covers as well."""
    return int(min(max(1.0, _CHECK_EVERY / cost), (run.max_epochs + 1e-9 - run.epochs - run.H.cost()) / cost))


def _batches(run: Run, batches: int) -> Iterator[Tensor]:
    """Parts of one random permutation after the other."""
    n = run.b.shape[0]
    while True:
        yield from partition(n, batches, run.generator, run.b.device)


def _features(run: Run, num: int) -> Iterator[Tensor]:
    """Fresh random features (n, num) for every step, drawn for a few steps at once to share the overhead of a draw."""
    while True:
        try:
            yield from run.H.features(num, run.generator, draws=8)
        except NotImplementedError as error:
            raise NotImplementedError(f"SGD needs random features, use SDD, AP or CG instead: {error}") from error
