"""Stochastic dual descent: gradient steps on random batches of coordinates, with Nesterov momentum."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.random import normal, partition, permutation
from pathgp.solvers.base import Solver
from pathgp.solvers.cuda_graph import Step, capture_step
from pathgp.solvers.monitor import GROWTH, Monitor, StepControl
from pathgp.solvers.run import Run, column_norms
from pathgp.solvers.solution import Solution, Status

# Number of random batches whose largest eigenvalues limit the automatic step size.
_TRIAL_BATCHES = 4
# Power iterations per eigenvalue. Few suffice: kernel matrices have a dominant eigenvalue.
_POWER_STEPS = 10
# Limits of the automatic batch size: smaller batches do not make a step faster, and larger batches do not make an epoch
# more effective.
_MIN_BATCH = {"cpu": 64, "cuda": 128}
_MAX_BATCH = 2048
# A run counts as stalled after this number of epochs in a row without an improvement of 1 %.
_PATIENCE = 30


@dataclass(frozen=True)
class SDD(Solver):
    """Stochastic dual descent on 1/2 a^T H a - a^T b (thesis, chapter 4; Lin et al. 2024).

        for each batch I of coordinates:
            g = H[I, :] (a + rho v) - b[I]
            v = rho v;  v[I] -= step g
            a = a + v

    The code stores u = a + rho / (1 - rho) v, which changes at I only, and q = a + rho v instead of a and v. A step
    then makes one pass over a vector of n s numbers in place of three:

            g = H[I, :] q - b[I]
            q = (1 - rho) u + rho q;  q[I] -= (1 + rho) step g;  u[I] -= step g / (1 - rho)

    An epoch is a random permutation of the coordinates, cut into batches: it visits every coordinate once. Its
    gradients g also estimate the residual, at no extra cost. One product confirms the estimate before the solver
    reports convergence. If the residuals grow, the last stable iterate is restored and the step size halved.

    With ``tol=0`` no tolerance ends the run: it takes T steps, as many as the budget allows, and returns a
    geometrically weighted average of the iterates: average += min(1, 100 / T) (a - average) after every step.

    Parameters
    ----------
    batch_size: coordinates per step. None: the size at which lambda_max(H[I, I]) = max_i H_ii / (1 - rho), at least 64
        (128 on a GPU) and at most 2048. Larger batches would need smaller steps. At this size an epoch reduces the
        residual most.
    step_size: beta n in the notation of the thesis; a step in the pseudo-code is beta n / batch_size. "auto": the step
        is the smaller of 1 / max_I lambda_max(H[I, I]), over a few random batches I, and
        (1 - rho) / (1 - rho^m) / max_i H_ii, with m = n / batch_size.
    momentum: rho, in [0, 1).

    Time per epoch: one product with H. Memory O(n s).
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
        if (choice := self._choose_batch_and_step(run)) is None:
            reason = "max_epochs does not cover the choice of a batch size and a step size"
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, self, reason)
        batch_size, learning_rate = choice
        descent = _Descent(run, batch_size, learning_rate, self.momentum)
        step = capture_step(run.H, descent.step)
        control = StepControl(run, run.initial_norms)
        monitor = Monitor(run, _PATIENCE if descent.averaging_weight is None else math.inf)
        # The last stable iterate and average.
        last_stable = (run.start, run.start)
        previous_norms = run.initial_norms
        status: Status | None = None
        while status is None:
            visited = descent.run_epoch(step)
            a = descent.iterate()
            x = a if descent.averaging_weight is None else descent.average
            if visited == 0:
                status = Status.BUDGET_EXHAUSTED
                break
            norms = run.record((descent.squared_norms * n / visited).sqrt(), exact=False)
            if not control.update(norms):
                descent.restore(*last_stable)
                if control.is_exhausted:
                    x, status = last_stable[1], Status.DIVERGED
            elif visited < n:
                status = Status.BUDGET_EXHAUSTED
            else:
                # Keep only iterates whose residuals are far from the limit.
                if control.growth < GROWTH / 2:
                    # The average is updated in place: keep a copy.
                    last_stable = (a, a if x is a else x.clone())
                # On average g was computed half an epoch ago. Assume that the residual has fallen since then at the
                # rate of the last epoch.
                expected_norms = norms * (norms / previous_norms).nan_to_num(1.0).clamp(max=1.0).sqrt()
                status = monitor.check(a, expected_norms, functools.partial(run.residual, a), norms)
                previous_norms = norms
        origin = "automatic" if self.step_size == "auto" else "given"
        note = f"{math.ceil(n / batch_size)} batches of {batch_size}, "
        note += f"{origin} step size {descent.learning_rate * batch_size:.3g}"
        note += f" after {control.halvings} halvings" if control.halvings else ""
        return run.finish(x, status, self, note, monitor.confirmed)

    def _choose_batch_and_step(self, run: Run) -> tuple[int, float] | None:
        """Return the batch size and the step, or None if the budget does not cover the cost of choosing them."""
        n, size = run.b.shape[0], self.batch_size
        if size is None:
            if not run.affords(_eigenvalue_cost(run, _trial_batch_size(run))):
                return None
            size = choose_batch_size(run, self.momentum)
        # Batches of equal size: a small last one would cost a step that changes few coordinates.
        batch_size = math.ceil(n / math.ceil(n / size))
        if self.step_size != "auto":
            return batch_size, float(self.step_size) / batch_size
        if not run.affords(_num_trial_batches(n, batch_size) * _eigenvalue_cost(run, batch_size)):
            return None
        return batch_size, choose_step(run, batch_size, self.momentum)


class _Descent:
    """The vectors u and q of `SDD`, (n, s) each, and the average of the iterates a if tol = 0.

    learning_rate: the step of the pseudo-code.

    Tensors are updated in place, so that steps can be captured in a CUDA graph.
    """

    def __init__(self, run: Run, batch_size: int, learning_rate: float, momentum: float) -> None:
        self.run, self.batch_size, self.learning_rate, self.momentum = run, batch_size, learning_rate, momentum
        num_steps = max(1.0, (run.max_epochs - run.epochs - run.H.cost()) / run.H.cost(batch_size))
        self.averaging_weight = min(1.0, 100.0 / num_steps) if run.tol == 0 else None
        self.u, self.q = run.start.clone(), run.start.clone()
        # Without averaging this is u itself, so that `restore` needs no special case.
        self.average = self.u if self.averaging_weight is None else run.start.clone()
        # The learning rate with a negative sign, as a tensor that a CUDA graph can read.
        self.negative_step = torch.empty((), dtype=self.u.dtype, device=self.u.device)
        # Squared norms (s,) of the gradients g, summed over an epoch.
        self.squared_norms = torch.zeros_like(run.initial_norms)

    def step(self, I: Tensor) -> None:
        """g = H[I, :] q - b[I];  q = (1 - rho) u + rho q;  q[I] -= (1 + rho) step g;  u[I] -= step g / (1 - rho)."""
        rho = self.momentum
        g = self.run.H.rows(I, self.q) - self.run.b[I]
        change = self.negative_step * g
        self.q.lerp_(self.u, 1.0 - rho).index_add_(0, I, change, alpha=1.0 + rho)
        self.u.index_add_(0, I, change, alpha=1.0 / (1.0 - rho))
        if self.averaging_weight is not None:
            self.average.lerp_(self.iterate(), self.averaging_weight)
        self.squared_norms.add_(column_norms(g).square())

    def iterate(self) -> Tensor:
        """Return a = u + (q - u) / rho, which follows from the definitions of u and q."""
        return self.u.lerp(self.q, 1.0 / self.momentum) if self.momentum else self.u.clone()

    def run_epoch(self, step: Step) -> int:
        """Take one step per batch until the epoch or the budget ends; return the number of coordinates visited.

        ``step``: the method `step`, as `capture_step` returns it.
        """
        run, visited = self.run, 0
        self.squared_norms.zero_()
        self.negative_step.fill_(-self.learning_rate)
        n = run.b.shape[0]
        for I in partition(n, math.ceil(n / self.batch_size), run.generator, self.u.device):
            if not run.affords(run.H.cost(len(I))):
                break
            step(I)
            run.epochs += run.H.cost(len(I))
            run.iterations += 1
            visited += len(I)
        return visited

    def restore(self, a: Tensor, average: Tensor) -> None:
        """Restart at an earlier iterate a, with v = 0 and half the learning rate."""
        self.u.copy_(a)
        self.q.copy_(a)
        self.average.copy_(average)
        self.learning_rate /= 2


def choose_batch_size(run: Run, momentum: float) -> int:
    """Return the batch size b with lambda_max(H[I, I]) = max_i H_ii / (1 - rho).

    At this size both limits of `choose_step` are about equal. Smaller batches do not allow larger steps, and for
    larger ones the step falls as 1 / b. The eigenvalue of a random batch grows linearly with b; a trial batch gives the
    slope.
    """
    largest_diagonal = float(run.H.diagonal().max())
    trial_size = _trial_batch_size(run)
    slope = (_largest_eigenvalue(run, trial_size) - largest_diagonal) / max(trial_size - 1, 1)
    batch_size = largest_diagonal * momentum / (1.0 - momentum) / max(slope, 1e-9 * largest_diagonal)
    return round(min(max(batch_size, _MIN_BATCH.get(run.H.device.type, 64)), _MAX_BATCH))


def choose_step(run: Run, batch_size: int, momentum: float) -> float:
    """Return the smaller of two limits of the step.

    - 1 / lambda_max(H[I, I]), the smallest over a few random batches I. Along eigenvectors that all batches share,
      steps are stable up to about 1.4 times this limit.
    - (1 - rho) / (1 - rho^m) / max_i H_ii, with m = n / batch_size. A coordinate that is nearly independent of the
      others gets a new gradient every m steps. Until then momentum moves it by 1 + rho + ... + rho^(m - 1)
      = (1 - rho^m) / (1 - rho) times its step. Steps are stable up to twice this limit.
    """
    n = run.b.shape[0]
    momentum_factor = (1.0 - momentum ** (n / batch_size)) / (1.0 - momentum)
    eigenvalues = [_largest_eigenvalue(run, batch_size) for _ in range(_num_trial_batches(n, batch_size))]
    return 1.0 / max(*eigenvalues, momentum_factor * float(run.H.diagonal().max()))


def _largest_eigenvalue(run: Run, batch_size: int) -> float:
    """Largest eigenvalue of H[I, I] for a random batch I, by power iteration in float64."""
    block = run.H.block(permutation(run.b.shape[0], run.generator, run.H.device)[:batch_size]).to(torch.float64)
    u = normal((batch_size, 1), run.generator, torch.float64, run.H.device)
    for _ in range(_POWER_STEPS):
        u = block @ (u / torch.linalg.vector_norm(u))
    run.epochs += _eigenvalue_cost(run, batch_size)
    return float(torch.linalg.vector_norm(u))


def _eigenvalue_cost(run: Run, batch_size: int) -> float:
    """Cost of `_largest_eigenvalue` in epochs: evaluate one block of H, and multiply it by one column per iteration."""
    n, s = run.b.shape
    return (batch_size / n) ** 2 * (1 + _POWER_STEPS / s)


def _trial_batch_size(run: Run) -> int:
    """Size of the batch from which `choose_batch_size` estimates how eigenvalues grow with the batch size."""
    n = run.b.shape[0]
    return min(n, max(_MIN_BATCH.get(run.H.device.type, 64), min(512, n // 4)))


def _num_trial_batches(n: int, batch_size: int) -> int:
    """Number of random batches of `choose_step`; one if a batch contains all coordinates."""
    return _TRIAL_BATCHES if batch_size < n else 1
