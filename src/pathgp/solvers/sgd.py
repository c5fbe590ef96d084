"""Stochastic gradient descent on the primal objective, with random features for the regulariser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pathgp.compute.random import partition
from pathgp.solvers.averaged_descent import POWERS, AveragedDescent
from pathgp.solvers.base import Solver
from pathgp.solvers.cuda_graph import capture_step
from pathgp.solvers.run import Run
from pathgp.solvers.solution import Solution, Status

# Epochs of steps between two products that measure the residual.
_CHECK_EVERY = 10.0


@dataclass(frozen=True)
class SGD(Solver):
    """Stochastic gradient descent (thesis, chapter 3; Lin et al. 2023).

        minimise  1/2 |b - K a|^2 + sigma^2 / 2 |a - delta|_K^2        with solution H^-1 (b + Sigma delta)

        for each batch I of rows, with fresh random features Phi:
            u = a + rho v
            g = K[:, I] (K[I, :] u - b[I]) / |I| + sigma^2 / n Phi Phi^T (u - delta)
            v = rho v - step clip(g)
            a = a + v
            average = average + 4 / (t + 3) (a - average)              # averaging="arithmetic": 1 / t

    The noise of a posterior sample belongs in ``delta``, where it does not add to the gradient's variance.
    With one noise variance per row, row i of the batch is weighted by mean(sigma^2) / sigma_i^2.

    Stochastic gradients do not vanish at the solution, so that small tolerances are out of reach: prefer SDD, which has
    the same cost, or AP. The method needs a kernel with random features.

    Parameters
    ----------
    batch_size: rows per step.
    step_size: beta n of the thesis; None is 0.5 for columns without and 0.1 for columns with ``delta``.
    momentum: rho, in [0, 1).
    features: number of random features per step.
    clip: largest norm of a column's gradient, in units of the root mean square of its right-hand side.
    averaging: "tail" favours late iterates; "arithmetic" is the mean of all iterates (Polyak), the average of the
        thesis's convergence bound (proposition 3.1), which forgets the start slowly.

    If the residuals grow, the last good iterate is restored and the step halved. Time per epoch: one product with H,
    plus features / (2 batch_size) of a product. Memory O(n s + n features).
    """

    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    features: int = 100
    clip: float = 0.1
    averaging: str = "tail"

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.features < 1:
            raise ValueError(f"batch_size and features must be at least 1, got {self.batch_size} and {self.features}")
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be None or a positive number, got {self.step_size}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")
        if self.averaging not in POWERS:
            raise ValueError(f"averaging must be 'tail' or 'arithmetic', got {self.averaging!r}")

    def _solve(self, run: Run) -> Solution:
        n = run.b.shape[0]
        batches = math.ceil(n / self.batch_size)
        batch = math.ceil(n / batches)
        draws = zip(_batches(run, batches), _features(run, self.features), strict=True)
        index, first = next(draws)
        phi = first.clone()  # a CUDA graph reads the features of a step from here
        descent = AveragedDescent(run, self._steps(run), self.momentum, self.averaging)
        weights, max_norm = row_weights(run), self.clip / math.sqrt(n)

        def clipped_gradient(index: Tensor, u: Tensor) -> Tensor:
            g = gradient(run, index, u, weights, phi)
            return g.mul_(torch.clamp(max_norm / torch.linalg.vector_norm(g, dim=0), max=1.0))

        step = capture_step(run.H, lambda index: descent.step(partial(clipped_gradient, index)))
        status = None
        while status is None and (steps := _affordable_steps(run, 2 * run.H.cost(batch))) > 0:
            for _ in range(steps):
                descent.count_step()
                step(index)
                run.epochs += 2 * run.H.cost(len(index))
                index, new = next(draws)
                phi.copy_(new)
            run.iterations += steps
            status = descent.check()
        return descent.finish(status or Status.BUDGET_EXHAUSTED, self, f"{batches} batches of {batch}")

    def _steps(self, run: Run) -> Tensor:
        """One step size per column (s,); a zero column has the solution zero and does not move."""
        step = torch.full_like(run.scale, 0.5 if self.step_size is None else self.step_size)
        if self.step_size is None and run.delta is not None:
            step.masked_fill_((run.delta != 0).any(0), 0.1)
        return step.masked_fill(run.is_zero, 0.0)


def gradient(run: Run, index: Tensor, u: Tensor, weights: Tensor, phi: Tensor) -> Tensor:
    """Unbiased estimate of 1/n times the gradient at u (n, s), from rows ``index`` and random features phi (n, q).

    g = K[:, I] W (K[I, :] u - b[I]) / |I| + mean(sigma^2) / n Phi Phi^T (u - delta)
    """
    noise = (run.H.noise[index].unsqueeze(1) if run.H.noise.ndim else run.H.noise).to(u.dtype)
    # H holds the noise on its diagonal, K does not.
    error = run.H.rows(index, u) - noise * u[index] - run.targets[index]
    error *= weights[index] / len(index)
    g = run.H.columns(index, error).index_add_(0, index, -noise * error)
    shift = u if run.delta is None else u - run.delta
    return g.addmm_(phi, (phi.T @ shift) * (run.H.noise.mean() / len(g)).to(u.dtype))


def row_weights(run: Run) -> Tensor:
    """mean(sigma^2) / sigma_i^2 as a column: (n, 1), all ones for one common noise."""
    noise = run.H.noise
    if noise.ndim == 0:
        return torch.ones_like(run.b[:, :1])
    if not bool((noise > 0).all()):
        raise ValueError("SGD divides by the noise of every row, which must not be zero: use AP or CG")
    return (noise.mean() / noise).to(run.b.dtype).unsqueeze(1)


def _affordable_steps(run: Run, cost: float) -> int:
    """Number of steps until the next check, such that budget and time limit cover the check, too."""
    steps = int(min(max(1.0, _CHECK_EVERY / cost), (run.max_epochs + 1e-9 - run.epochs - run.H.cost()) / cost))
    return steps if run.affords(steps * cost) else 0


def _batches(run: Run, batches: int) -> Iterator[Tensor]:
    """Batches of row numbers: consecutive parts of random permutations."""
    n = run.b.shape[0]
    while True:
        yield from partition(n, batches, run.generator, run.b.device)


def _features(run: Run, num: int) -> Iterator[Tensor]:
    """New random features (n, num) for every step, drawn for eight steps at once to share the overhead."""
    while True:
        try:
            yield from run.H.features(num, run.generator, draws=8)
        except NotImplementedError as error:
            raise NotImplementedError(f"SGD needs random features: use SDD, AP or CG. {error}") from error
