"""K(targets, sources) V for stationary kernels in up to three dimensions, in n log n: a grid and a near part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.operators.field.grid import GridPart, coordinates, evaluate_nodes, node_spans
from pathgp.operators.field.near import Blocks, NearPart, contract_values
from pathgp.operators.field.plan import Plan
from pathgp.operators.field.points import place_points
from pathgp.operators.structured import ValueAndGradients


class FieldProduct:
    """W T W^T + C: T the smooth part of the kernel on a grid, W windows of the points, C the near part.

    Args:
        kernel: a sum, product or scale of stationary kernels.
        plan: grid and radii.
        targets, sources: inputs (m, d) and (n, d); ``sources=None``: the same points.
        blocks: of targets and sources, for a plan with a near part.
        memory: budget in bytes.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        targets: Tensor,
        sources: Tensor | None,
        blocks: tuple[Blocks, Blocks | None] | None,
        memory: int,
    ) -> None:
        self.kernel, self.plan, self.memory, self.dim = kernel, plan, memory, targets.shape[1]
        self.device = targets.device
        self.near: NearPart | None = None
        if blocks is not None and any(plan.split.radii.values()):
            self.near = NearPart(kernel, plan.split, *blocks, targets.dtype, memory)
        windows = place_points(plan.grid, targets, memory)
        own = windows if sources is None else place_points(plan.grid, sources, memory)
        with torch.no_grad():
            values = evaluate_nodes(plan.grid.lags(), self._at_lags, targets.device)
            lags = self._near_lags()
            if lags is not None:
                box = tuple(slice(len(side)) for side in lags)
                values[box] -= evaluate_nodes(lags, self._near_at_lags, targets.device)
        self.grid = GridPart(plan.grid, values, own, windows, targets.dtype)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        """start + K V, in the memory of start."""
        with torch.no_grad():
            self.grid.product(V, start, self.memory)
            if self.near is not None:
                self.near.product(V, start)
        return start

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor]) -> ValueAndGradients:
        """sum_j L_j^T K R_j and its gradient in the learned parameters, for equal targets and sources.

        The sum over the grid is one over lags, with weights that do not depend on the parameters.
        """
        weights = self.grid.lag_weights(L, R, self.memory)
        value, grads = self._contract_lags(weights, learned)
        if self.near is not None:
            near, near_grads = self.near.bilinear(L, R, learned)
            value, grads = value + near, [a + b for a, b in zip(grads, near_grads, strict=True)]
        return value, grads

    def _contract_lags(self, weights: Tensor, learned: list[Tensor]) -> ValueAndGradients:
        lags, flat = self.plan.grid.lags(), weights.flatten()
        parts = [
            contract_values(partial(self._at_nodes, self._at_lags, lags, part), flat[part], learned)
            for part in node_spans(lags)
        ]
        near = self._near_lags()
        if near is not None:
            box = weights[tuple(slice(len(side)) for side in near)].flatten()
            parts += [
                contract_values(partial(self._at_nodes, self._near_at_lags, near, part), -box[part], learned)
                for part in node_spans(near)
            ]
        values, grads = zip(*parts, strict=True)
        return torch.stack(values).sum(), [torch.stack(own).sum(0) for own in zip(*grads, strict=True)]

    def _at_nodes(self, evaluate: Callable[[list[Tensor]], Tensor], lags: list[Tensor], part: slice) -> Tensor:
        """evaluate(differences) at some of the nodes."""
        return evaluate(coordinates(lags, part, self.device))

    def _at_lags(self, lags: list[Tensor]) -> Tensor:
        """The kernel at differences of nodes (m,)."""
        points = self._embed(lags)
        return self.kernel(torch.stack(points, 1), points[0].new_zeros(1, self.dim)).squeeze(1)

    def _near_at_lags(self, lags: list[Tensor]) -> Tensor:
        """What the near part contains of the kernel at differences of nodes (m,)."""
        return self.plan.split.near(self.kernel, self._embed(lags))

    def _embed(self, lags: list[Tensor]) -> list[Tensor]:
        """Differences in all columns of X; 0 in those in which all points are equal."""
        columns = [torch.zeros_like(lags[0])] * self.dim
        for column, lag in zip(self.plan.grid.columns, lags, strict=True):
            columns[column] = lag
        return columns

    def _near_lags(self) -> list[Tensor] | None:
        """The lags, in every dimension, at which the near part is not zero; None without a near part."""
        if self.near is None:
            return None
        reach = self.plan.split.reach(self.kernel)
        sides = zip(self.plan.grid.lags(), self.plan.grid.columns, strict=True)
        return [lags[: int((lags <= reach[column]).sum())] for lags, column in sides]
