"""Stochastic variational inference with natural gradients (Hensman, Fusi and Lawrence 2013; thesis, section 2.2.1).

q(u) = N(P^-1 theta, P^-1) for the whitened inducing values u, whose prior is N(0, I). Its natural parameters are theta
and -P / 2, and a natural gradient step of size eta on a batch of b of n rows is

    theta <- (1 - eta) theta + eta (n / b) V r,        P <- (1 - eta) P + eta (I + (n / b) V V^T),

with V (m, b) and r (b,) divided by the noise. (The thesis has a sign error in the step of P: there it would grow.) All
rows and eta = 1 give theta = c and P = B, the optimum, which is that of SGPR. So does one pass over disjoint batches
with the steps eta = (rows of the batch) / (rows seen so far): the average of what all batches say. Conditioning at
given hyperparameters needs no other steps, so that svgp then computes what sgpr computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp.solvers.cholesky import factorise
from pathgp.sparse.family import whiten_rows
from pathgp.sparse.problem import Block, Problem, root_of


@dataclass(frozen=True)
class Variational:
    """q(u): precision P (m, m) and first natural parameter theta (m,)."""

    precision: Tensor
    theta: Tensor

    @classmethod
    def prior(cls, m: int, like: Tensor) -> Variational:
        """N(0, I) for m inducing points."""
        return cls(torch.eye(m, dtype=like.dtype, device=like.device), like.new_zeros(m))

    def natural_step(self, V: Tensor, r: Tensor, share: float, size: float) -> Variational:
        """A step of ``size`` on whitened rows V (m, b), r (b,) that are this ``share`` b / n of all. Time O(m^2 b)."""
        target = V @ V.T / share
        target.diagonal().add_(1.0)
        precision = torch.lerp(self.precision, target, size)
        return Variational(precision, torch.lerp(self.theta, V @ r / share, size))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean (m,) of u and the Cholesky factor of P. Time O(m^3)."""
        factor, _ = factorise(self.precision.clone())
        return torch.cholesky_solve(self.theta.unsqueeze(1), factor)[:, 0], factor


class BatchObjective(NamedTuple):
    """The bound estimated from a batch, in nats, its gradients, and q(u) after the natural step."""

    value: float
    gradients: list[Tensor]
    q: Variational


def step_on_batch(
    problem: Problem, q: Variational, batch: Block, size: float, parameters: Sequence[Tensor]
) -> BatchObjective:
    """A natural step of q(u) on a batch of rows, and the gradient of the bound there in the hyperparameters.

    bound = n / b sum_i [log N(r_i | v_i^T E[u], sigma_i^2) - (k_ii - v_i^T v_i + v_i^T Var(u) v_i) / (2 sigma_i^2)]
            - KL(q(u) | N(0, I)).

    Time O(m^3 + m^2 b).
    """
    with torch.enable_grad():
        X, r, noise = problem.rows(batch)
        share = len(r) / len(problem.data.y)
        root = torch.linalg.cholesky(_with_jitter(problem))
        V = torch.linalg.solve_triangular(root, problem.kernel(problem.Z, X), upper=False)
        white = whiten_rows(problem.method, problem.kernel, X, V, r, noise)
        with torch.no_grad():
            q = q.natural_step(white.V, white.r, share, size)
            mean, factor = q.moments()
        spread = torch.linalg.solve_triangular(factor, white.V, upper=False)
        misfit = (white.r - mean @ white.V).square().sum() + spread.square().sum()
        constant = len(r) * torch.log(torch.tensor(2.0 * torch.pi, dtype=r.dtype))
        likelihood = -0.5 / share * (misfit + white.logdet + white.trace + constant.to(r.device))
        gradients = torch.autograd.grad(likelihood, list(parameters), allow_unused=True)
    found = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    inverse_trace = float(torch.cholesky_inverse(factor).diagonal().sum())
    logdet = 2.0 * float(factor.diagonal().log().sum())
    divergence = 0.5 * (inverse_trace + float(mean @ mean) - len(mean) + logdet)
    return BatchObjective(float(likelihood.detach()) - divergence, found, q)


def _with_jitter(problem: Problem) -> Tensor:
    """K_ZZ with gradients, plus the jitter that its factorisation needs."""
    K = problem.kernel(problem.Z)
    _, jitter = root_of(K.detach().clone())
    return K + jitter * torch.eye(len(K), dtype=K.dtype, device=K.device)
