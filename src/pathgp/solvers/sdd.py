"""Stochastic dual descent: gradient steps on random coordinates, with Nesterov momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathgp.compute.random import normal, partition, permutation
from pathgp.solvers.base import Run, Solution, Solver, Status, column_norms
from pathgp.solvers.cuda_graph import replayed

# Blocks looked at for the automatic step, and products with each: kernel matrices have a dominant
# eigenvalue, which few products find.
_BLOCKS, _POWER_STEPS = 4, 10
# The automatic batch size lies between these: larger ones gain nothing, and smaller ones take no less time.
_SMALLEST, _LARGEST = {"cpu": 64, "cuda": 128}, 2048
# An epoch whose residuals exceed the best ones by this factor has diverged. Sound steps let them fluctuate
# far less than this, an unsound one multiplies them by far more in one epoch.
_GROWTH = 4.0
_MAX_HALVINGS = 25
# Epochs without an improvement by a percent after which a run counts as stalled.
_PATIENCE = 30


@dataclass(frozen=True)
class SDD(Solver):
    """Stochastic dual descent on 1/2 a^T H a - a^T b (thesis, chapter 4; Lin et al. 2024).

        for each batch I of coordinates:
            g = H[I, :] (a + rho v) - b[I]
            v = rho v;  v[I] -= step g
            a = a + v

    In u = a + rho / (1 - rho) v, which moves at I only, and the point ahead q = a + rho v this is one pass over n s
    numbers a batch instead of three:

            g = H[I, :] q - b[I]
            q = (1 - rho) u + rho q;  q[I] -= (1 + rho) step g;  u[I] -= step g / (1 - rho)

    Batches are consecutive parts of random permutations, so that an epoch visits every coordinate once, and
    the residuals g of an epoch estimate those of all rows for free; a product confirms them before
    convergence is claimed. With ``tol=0``, a run of fixed length T, the geometric average of the iterates
    with weight 100 / T is returned.

    Parameters
    ----------
    batch_size: coordinates per step; None is as many as can take the step that a single one allows, which is where an
        epoch gains most: lambda_max(H[I, I]) = max_i H_ii / (1 - rho), between 64 (128 on a GPU) and 2048.
    step_size: the product beta n of the thesis, applied to a sampled coordinate as beta n / batch_size; or
        "auto": the lesser of 1 / the largest eigenvalue of H[I, I] over a few random batches I and (1 - rho) / the
        largest element on the diagonal of H.
    momentum: rho, in [0, 1).

    Residuals that grow restore the last good iterate with half the step. Time per epoch: one product with H.
    Memory O(n s).
    """

    batch_size: int | None = None
    step_size: float | str = "auto"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if isinstance(self.step_size, str):
            if self.step_size != "auto":
                raise ValueError(f"step_size must be 'auto' or a positive number, got {self.step_size!r}")
        elif not 0 < self.step_size < math.inf:
            raise ValueError(f"step_size must be 'auto' or a positive number, got {self.step_size}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def _solve(self, run: Run) -> Solution:
        n = run.b.shape[0]
        if (choice := self._choose(run)) is None:
            excuse = "the budget does not cover the choice of batches and a step size"
            return run.finish(run.start, Status.BUDGET_EXHAUSTED, repr(self), excuse)
        batch, step = choice
        batches = math.ceil(n / batch)

        planned = max(1.0, (run.max_epochs - run.epochs - run.H.cost()) / run.H.cost(batch))
        averaging = min(1.0, 100.0 / planned) if run.tol == 0 else None
        u, q = run.start.clone(), run.start.clone()
        # Without averaging it is not looked at.
        average = u if averaging is None else run.start.clone()
        good = (run.start, run.start)
        # The truth at the end of an epoch relative to its estimate, learned from the checks.
        correction = 1.0
        best, halvings = run.initial_norms, 0
        before, floor = best, max(float(run.goal.min()), torch.finfo(u.dtype).eps)
        # The step in the direction of the gradient, and the squares of an epoch's residuals.
        rate, seen = torch.empty((), dtype=u.dtype, device=u.device), torch.zeros_like(best)

        def note() -> str:
            how = "automatic" if self.step_size == "auto" else "given"
            text = f"{batches} batches of {batch}, {how} step size {step * batch:.3g}"
            return text if halvings == 0 else f"{text} after {halvings} halvings"

        def iterate() -> Tensor:
            return u.lerp(q, 1.0 / self.momentum) if self.momentum else u.clone()

        def move(index: Tensor) -> None:
            g = run.H.rows(index, q) - run.b[index]
            change = rate * g
            q.lerp_(u, 1.0 - self.momentum).index_add_(0, index, change, alpha=1.0 + self.momentum)
            u.index_add_(0, index, change, alpha=1.0 / (1.0 - self.momentum))
            if averaging is not None:
                average.lerp_(iterate(), averaging)
            seen.add_(column_norms(g).square())

        advance = replayed(run.H, move)
        while True:
            visited = 0
            seen.zero_()
            rate.fill_(-step)
            for index in partition(n, batches, run.generator, u.device):
                if not run.affords(run.H.cost(len(index))):
                    break
                advance(index)
                run.epochs += run.H.cost(len(index))
                visited += len(index)
                run.iterations += 1

            a = iterate()
            result = a if averaging is None else average
            if visited == 0:
                return run.finish(result, Status.BUDGET_EXHAUSTED, repr(self), note())
            norms = run.record((seen * n / visited).sqrt(), exact=False)
            growth = float((norms / best.clamp_min(floor)).nan_to_num(math.inf).max())
            if growth > _GROWTH:
                halvings += 1
                if halvings > _MAX_HALVINGS:
                    return run.finish(good[1], Status.DIVERGED, repr(self), note())
                u.copy_(good[0])
                q.copy_(good[0])
                average.copy_(good[1])
                step /= 2
                continue
            if visited < n:
                return run.finish(result, Status.BUDGET_EXHAUSTED, repr(self), note())
            if growth < _GROWTH / 2:
                good = (a, a if averaging is None else average.clone())
            # Rows were seen half an epoch ago on average, and the residual has gone on falling since.
            expected = norms * (norms / before).nan_to_num(1.0).clamp(max=1.0).sqrt()
            if run.tol > 0 and 0.0 < correction * run.measure(expected) <= 1.0:
                if not run.affords(run.H.cost()):
                    return run.finish(a, Status.BUDGET_EXHAUSTED, repr(self), note())
                exact = run.record(column_norms(run.residual(a)), exact=True)
                if run.confirmed(a, exact):
                    return run.finish(a, Status.CONVERGED, repr(self), note(), exact)
                correction = run.measure(exact) / run.measure(expected)
            before, best = norms, torch.minimum(best, norms)
            if averaging is None and run.stalled(norms, _PATIENCE):
                return run.finish(a, Status.STALLED, repr(self), note())

    def _choose(self, run: Run) -> tuple[int, float] | None:
        """Coordinates of a batch and the step of each; None where the budget does not cover the choice."""
        n, size = run.b.shape[0], self.batch_size
        if size is None:
            if not run.affords(_cost(run, _trial(run))):
                return None
            size = automatic_batch(run, self.momentum)
        # Batches of equal size: a small last one would waste its turn.
        batch = math.ceil(n / math.ceil(n / size))
        if self.step_size != "auto":
            return batch, float(self.step_size) / batch
        if not run.affords(_blocks(n, batch) * _cost(run, batch)):
            return None
        return batch, automatic_step(run, batch, self.momentum)


def automatic_batch(run: Run, momentum: float) -> int:
    """The size b of batches with lambda_max(H[I, I]) = max_i H_ii / (1 - rho).

    Smaller ones could not take larger steps, and the steps of larger ones shrink as 1 / b. Of random batches the
    eigenvalue grows by the same amount with every coordinate.
    """
    single = float(run.H.diagonal().max())
    trial = _trial(run)
    growth = (_largest_eigenvalue(run, trial) - single) / max(trial - 1, 1)
    wanted = single * momentum / (1.0 - momentum) / max(growth, 1e-9 * single)
    return round(min(max(wanted, _smallest(run)), _LARGEST))


def automatic_step(run: Run, batch: int, momentum: float) -> float:
    """1 / lambda_max(H[I, I]), the largest over a few random batches I, at most (1 - rho) / max_i H_ii.

    Directions in which all batches move are stable up to about 1.4 times the first. A coordinate with few neighbours is
    left alone from one visit to the next, m batches later, and momentum carries it 1 + rho + ... + rho^(m - 1) =
    (1 - rho^m) / (1 - rho) times as far as its step: stable up to twice the second.
    """
    n = run.b.shape[0]
    carried = (1.0 - momentum ** (n / batch)) / (1.0 - momentum)
    eigenvalues = [_largest_eigenvalue(run, batch) for _ in range(_blocks(n, batch))]
    return 1.0 / max(*eigenvalues, carried * float(run.H.diagonal().max()))


def _largest_eigenvalue(run: Run, batch: int) -> float:
    """Of H[I, I] for a random batch I, by power iteration in float64."""
    block = run.H.block(permutation(run.b.shape[0], run.generator, run.H.device)[:batch]).to(torch.float64)
    u = normal((batch, 1), run.generator, torch.float64, run.H.device)
    for _ in range(_POWER_STEPS):
        u = block @ (u / torch.linalg.vector_norm(u))
    run.epochs += _cost(run, batch)
    return float(torch.linalg.vector_norm(u))


def _smallest(run: Run) -> int:
    return _SMALLEST.get(run.H.device.type, 64)


def _trial(run: Run) -> int:
    """Coordinates that tell how eigenvalues grow, a small part of H."""
    n = run.b.shape[0]
    return min(n, max(_smallest(run), min(512, n // 4)))


def _blocks(n: int, batch: int) -> int:
    return _BLOCKS if batch < n else 1


def _cost(run: Run, batch: int) -> float:
    """Epochs of `_largest_eigenvalue`: a (batch / n)^2 part of H, met once and multiplied with a column a few times."""
    n, s = run.b.shape
    return (batch / n) ** 2 * (1 + _POWER_STEPS / s)
