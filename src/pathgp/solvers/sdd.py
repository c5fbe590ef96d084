"""Stochastic dual descent: gradient steps on random coordinates, with Nesterov momentum."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.random import normal, partition, permutation
from pathgp.solvers.base import Solver
from pathgp.solvers.cuda_graph import capture_step
from pathgp.solvers.monitor import GROWTH, Monitor, StepControl
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# Random batches from which the automatic step is estimated, and products with each: kernel matrices have a dominant
# eigenvalue, which few products find.
_BLOCKS, _POWER_STEPS = 4, 10
# Limits of the automatic batch size: larger batches gain nothing, and smaller ones take as much time.
_SMALLEST, _LARGEST = {"cpu": 64, "cuda": 128}, 2048
# Epochs without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 30


@dataclass(frozen=True)
class SDD(Solver):
    """Stochastic dual descent on 1/2 a^T H a - a^T b (thesis, chapter 4; Lin et al. 2024).

        for each batch I of coordinates:
            g = H[I, :] (a + rho v) - b[I]
            v = rho v;  v[I] -= step g
            a = a + v

    With u = a + rho / (1 - rho) v, which changes at I only, and q = a + rho v, this is one pass over n s numbers per
    batch instead of three:

            g = H[I, :] q - b[I]
            q = (1 - rho) u + rho q;  q[I] -= (1 + rho) step g;  u[I] -= step g / (1 - rho)

    Batches are consecutive parts of random permutations, so that an epoch visits every coordinate once, and the
    residuals g of an epoch estimate those of all rows at no cost; a product confirms the estimate before convergence is
    claimed. With ``tol=0``, a run of fixed length T, the geometric average of the iterates
    with weight 100 / T is returned.

    Parameters
    ----------
    batch_size: coordinates per step; None is the largest batch that can take the step size of a single coordinate,
        where an epoch gains most: lambda_max(H[I, I]) = max_i H_ii / (1 - rho), between 64 (128 on a GPU) and 2048.
    step_size: the product beta n of the thesis, applied to a sampled coordinate as beta n / batch_size; or "auto": the
        smaller of 1 / the largest eigenvalue of H[I, I] over a few random batches I and (1 - rho) / the largest element
        on the diagonal of H.
    momentum: rho, in [0, 1).

    If the residuals grow, the last good iterate is restored and the step halved. Time per epoch: one product with H.
    Memory O(n s).
    """

    batch_size: int | None = None
    step_size: float | str = "auto"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.step_size != "auto" and (isinstance(self.step_size, str) or not 0 < self.step_size < math.inf):
            raise ValueError(f"step_size must be 'auto' or a positive number, got {self.step_size!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def _solve(self, run: Run) -> Solution:
        n = run.b.shape[0]
        if (choice := self._batch_and_step(run)) is None:
            reason = "the budget does not cover the choice of batches and a step size"
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, self, reason)
        batch, step_size = choice
        descent = _Descent(run, batch, step_size, self.momentum)
        control = StepControl(run, run.initial_norms)
        monitor = Monitor(run, _PATIENCE if descent.averaging is None else math.inf)
        good, previous, status = (run.start, run.start), run.initial_norms, None
        while status is None:
            visited = descent.run_epoch()
            a = descent.iterate()
            x = a if descent.averaging is None else descent.average
            if visited == 0:
                status = Status.BUDGET_EXHAUSTED
                break
            norms = run.record((descent.squares * n / visited).sqrt(), exact=False)
            if not control.is_stable(norms):
                descent.restore(*good)
                if control.is_exhausted:
                    x, status = good[1], Status.DIVERGED
            elif visited < n:
                status = Status.BUDGET_EXHAUSTED
            else:
                if control.growth < GROWTH / 2:
                    good = (a, a if x is a else x.clone())
                # The rows were visited half an epoch ago on average; the residual has continued to fall since.
                expected = norms * (norms / previous).nan_to_num(1.0).clamp(max=1.0).sqrt()
                status = monitor.check(a, expected, functools.partial(run.residual, a), norms)
                previous = norms
        origin = "automatic" if self.step_size == "auto" else "given"
        note = f"{math.ceil(n / batch)} batches of {batch}, {origin} step size {descent.step_size * batch:.3g}"
        note += f" after {control.halvings} halvings" if control.halvings else ""
        return run.finish(x, status, self, note, monitor.confirmed)

    def _batch_and_step(self, run: Run) -> tuple[int, float] | None:
        """Coordinates per batch and the step size of each; None if the budget does not cover the choice."""
        n, size = run.b.shape[0], self.batch_size
        if size is None:
            if not run.affords(_eigenvalue_cost(run, _trial_batch(run))):
                return None
            size = automatic_batch(run, self.momentum)
        # Batches of equal size: a small last one would waste its turn.
        batch = math.ceil(n / math.ceil(n / size))
        if self.step_size != "auto":
            return batch, float(self.step_size) / batch
        if not run.affords(_num_blocks(n, batch) * _eigenvalue_cost(run, batch)):
            return None
        return batch, automatic_step(run, batch, self.momentum)


class _Descent:
    """The vectors u and q of dual descent, (n, s) each, and the average of the iterates a for runs of fixed length.

    Tensors are updated in place, so that steps can be captured in a CUDA graph.
    """

    def __init__(self, run: Run, batch: int, step_size: float, momentum: float) -> None:
        self.run, self.batch, self.step_size, self.momentum = run, batch, step_size, momentum
        planned = max(1.0, (run.max_epochs - run.epochs - run.H.cost()) / run.H.cost(batch))
        self.averaging = min(1.0, 100.0 / planned) if run.tol == 0 else None
        self.u, self.q = run.start.clone(), run.start.clone()
        self.average = self.u if self.averaging is None else run.start.clone()
        # The negative step size as a tensor, and the sum of the squared residuals of an epoch.
        self.rate = torch.empty((), dtype=self.u.dtype, device=self.u.device)
        self.squares = torch.zeros_like(run.initial_norms)
        self._captured_step = capture_step(run.H, self.step)

    def step(self, index: Tensor) -> None:
        """g = H[I, :] q - b[I];  q = (1 - rho) u + rho q;  q[I] -= (1 + rho) step g;  u[I] -= step g / (1 - rho)."""
        rho = self.momentum
        g = self.run.H.rows(index, self.q) - self.run.b[index]
        change = self.rate * g
        self.q.lerp_(self.u, 1.0 - rho).index_add_(0, index, change, alpha=1.0 + rho)
        self.u.index_add_(0, index, change, alpha=1.0 / (1.0 - rho))
        if self.averaging is not None:
            self.average.lerp_(self.iterate(), self.averaging)
        self.squares.add_(column_norms(g).square())

    def iterate(self) -> Tensor:
        """a = u + (q - u) / rho."""
        return self.u.lerp(self.q, 1.0 / self.momentum) if self.momentum else self.u.clone()

    def run_epoch(self) -> int:
        """One step per batch, as far as the budget goes; return the number of rows visited."""
        run, visited = self.run, 0
        self.squares.zero_()
        self.rate.fill_(-self.step_size)
        n = run.b.shape[0]
        for index in partition(n, math.ceil(n / self.batch), run.generator, self.u.device):
            if not run.affords(run.H.cost(len(index))):
                break
            self._captured_step(index)
            run.epochs += run.H.cost(len(index))
            run.iterations += 1
            visited += len(index)
        return visited

    def restore(self, a: Tensor, average: Tensor) -> None:
        """Begin again at an earlier iterate, at rest, with half the step."""
        self.u.copy_(a)
        self.q.copy_(a)
        self.average.copy_(average)
        self.step_size /= 2


def automatic_batch(run: Run, momentum: float) -> int:
    """The batch size b with lambda_max(H[I, I]) = max_i H_ii / (1 - rho).

    Smaller batches could not take larger steps, and the steps of larger ones shrink as 1 / b. For random batches the
    eigenvalue grows linearly with b.
    """
    single = float(run.H.diagonal().max())
    trial = _trial_batch(run)
    growth = (_largest_eigenvalue(run, trial) - single) / max(trial - 1, 1)
    wanted = single * momentum / (1.0 - momentum) / max(growth, 1e-9 * single)
    return round(min(max(wanted, _SMALLEST.get(run.H.device.type, 64)), _LARGEST))


def automatic_step(run: Run, batch: int, momentum: float) -> float:
    """1 / lambda_max(H[I, I]), the largest over a few random batches I, at most (1 - rho) / max_i H_ii.

    Directions in which all batches move are stable up to about 1.4 times the first. A coordinate with few neighbours
    receives no gradient until its next visit, m batches later, and momentum moves it 1 + rho + ... + rho^(m - 1) =
    (1 - rho^m) / (1 - rho) times as far as its step: stable up to twice the second.
    """
    n = run.b.shape[0]
    carried = (1.0 - momentum ** (n / batch)) / (1.0 - momentum)
    eigenvalues = [_largest_eigenvalue(run, batch) for _ in range(_num_blocks(n, batch))]
    return 1.0 / max(*eigenvalues, carried * float(run.H.diagonal().max()))


def _largest_eigenvalue(run: Run, batch: int) -> float:
    """Largest eigenvalue of H[I, I] for a random batch I, by power iteration in float64."""
    block = run.H.block(permutation(run.b.shape[0], run.generator, run.H.device)[:batch]).to(torch.float64)
    u = normal((batch, 1), run.generator, torch.float64, run.H.device)
    for _ in range(_POWER_STEPS):
        u = block @ (u / torch.linalg.vector_norm(u))
    run.epochs += _eigenvalue_cost(run, batch)
    return float(torch.linalg.vector_norm(u))


def _eigenvalue_cost(run: Run, batch: int) -> float:
    """Epochs of `_largest_eigenvalue`: a (batch / n)^2 part of H, evaluated once, and products with one column."""
    n, s = run.b.shape
    return (batch / n) ** 2 * (1 + _POWER_STEPS / s)


def _trial_batch(run: Run) -> int:
    """Size of the batch, a small part of H, that shows how eigenvalues grow."""
    n = run.b.shape[0]
    return min(n, max(_SMALLEST.get(run.H.device.type, 64), min(512, n // 4)))


def _num_blocks(n: int, batch: int) -> int:
    return _BLOCKS if batch < n else 1
