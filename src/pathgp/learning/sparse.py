"""Gradient estimators of sparse methods, for the loop that all models share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.observations import Data
from pathgp.learning.estimators import Exact, GradientEstimate, State, StepRequest
from pathgp.sparse.objective import evaluate
from pathgp.sparse.variational import Variational, step_on_batch


@dataclass(frozen=True)
class Collapsed(Exact):
    """The objective of a sparse method and its gradient, from two passes over the data. See `sparse.objective`."""

    @property
    def description(self) -> str:
        return "exact, of the objective of the sparse method"

    def evaluate(self, model: Any, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        began = time.perf_counter()
        parameters = _learned(model)
        found = evaluate(model.problem(state.select(data), request.settings.compute), parameters)
        objective = _linear(parameters, found.gradients)
        return GradientEstimate(objective, found.value, None, time.perf_counter() - began, found.misfit)


@dataclass(frozen=True)
class Stochastic(Exact):
    """The bound on a mini-batch, after a natural gradient step of q(u) on it. See `sparse.variational`.

    batch: rows.  size: of the natural steps.
    """

    batch: int = 1024
    size: float = 0.1

    @property
    def description(self) -> str:
        return f"mini-batches of {self.batch:,} rows, natural steps of {self.size:g}"

    def evaluate(self, model: Any, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        began = time.perf_counter()
        parameters, data = _learned(model), state.select(data)
        problem, n = model.problem(data, request.settings.compute), len(data.y)
        m, Z = len(problem.Z), problem.Z.detach()
        q = Variational.prior(m, Z)
        if state.variational is not None:
            q = Variational(state.variational[:, :m], state.variational[:, m])
        batch = permutation(n, request.generator, data.device)[: self.batch].sort().values
        # The first step trusts the batch: q(u) starts far from the posterior.
        size = self.size if state.variational is not None else 1.0
        found = step_on_batch(problem, q, batch, size, parameters)
        state.variational = torch.cat([found.q.precision, found.q.theta.unsqueeze(1)], 1)
        objective = _linear(parameters, found.gradients)
        return GradientEstimate(objective, None, None, time.perf_counter() - began, 1.0)


def _learned(model: Any) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _linear(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """A scalar with these gradients; its value has no meaning."""
    parts = [(p * g).sum().cpu() for p, g in zip(parameters, gradients, strict=True)]
    return torch.stack(parts).sum()
