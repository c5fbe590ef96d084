"""Gradient estimators of sparse methods, for the loop that all models share."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.random import permutation
from pathgp.data.observations import Data
from pathgp.learning.estimators import Exact, GradientEstimate, State, StepRequest
from pathgp.sparse.objective import Objective, evaluate
from pathgp.sparse.problem import Problem
from pathgp.sparse.variational import Variational, step_on_batch


class SparseEstimator(Exact):
    """An objective of a sparse method with its gradients, from the rows of the current stage."""

    approximation = "by the objective of the sparse method"

    def evaluate(self, model: Any, data: Data, state: State, request: StepRequest) -> GradientEstimate:
        began = time.perf_counter()
        parameters = [p for p in model.parameters() if p.requires_grad]
        problem = model.problem(state.select(data), request.settings.compute)
        found = self._evaluate(problem, parameters, state, request.generator)
        # A scalar with these gradients; its value has no meaning.
        parts = [(p * g).sum().cpu() for p, g in zip(parameters, found.gradients, strict=True)]
        seconds = time.perf_counter() - began
        return GradientEstimate(torch.stack(parts).sum(), found.value, None, seconds, found.misfit)

    @abstractmethod
    def _evaluate(
        self, problem: Problem, parameters: Sequence[Tensor], state: State, generator: torch.Generator
    ) -> Objective:
        """The objective and its gradient in the parameters."""


@dataclass(frozen=True)
class Collapsed(SparseEstimator):
    """The objective of a sparse method and its gradient, from two passes over the data. See `sparse.objective`."""

    @property
    def description(self) -> str:
        return "exact, of the objective of the sparse method"

    def _evaluate(
        self, problem: Problem, parameters: Sequence[Tensor], state: State, generator: torch.Generator
    ) -> Objective:
        return evaluate(problem, parameters)


@dataclass(frozen=True)
class Stochastic(SparseEstimator):
    """The bound on a mini-batch, after a natural gradient step of q(u) on it. See `sparse.variational`.

    batch: rows.  size: of the natural steps.
    """

    batch: int = 1024
    size: float = 0.1

    @property
    def description(self) -> str:
        return f"mini-batches of {self.batch:,} rows, natural steps of {self.size:g}"

    def _evaluate(
        self, problem: Problem, parameters: Sequence[Tensor], state: State, generator: torch.Generator
    ) -> Objective:
        m, Z = len(problem.Z), problem.Z.detach()
        q = Variational.prior(m, Z)
        if state.variational is not None:
            q = Variational(state.variational[:, :m], state.variational[:, m])
        batch = permutation(len(problem.data.y), generator, problem.data.device)[: self.batch].sort().values
        # The first step trusts the batch: q(u) starts far from the posterior.
        size = self.size if state.variational is not None else 1.0
        found = step_on_batch(problem, q, batch, size, parameters)
        state.variational = torch.cat([found.q.precision, found.q.theta.unsqueeze(1)], 1)
        # The bound of one batch is no measure of progress.
        return Objective(None, found.gradients, 1.0)
