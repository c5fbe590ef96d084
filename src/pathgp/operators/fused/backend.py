"""K evaluated inside a Triton kernel at every product, square and rectangular: no entry ever leaves the chip."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property

import torch
from torch import Tensor

from pathgp.compute.counts import CountRows
from pathgp.compute.process_groups import share
from pathgp.compute.triton import missing
from pathgp.kernels import Kernel
from pathgp.operators.fused.engine import Engine, check_room
from pathgp.operators.fused.expression import Expression, Node
from pathgp.operators.fused.leaves import HELD_LEVELS, Leaf, Structure
from pathgp.operators.fused.points import DOUBLE_COLUMNS, Extent, Frame, Points, half_width, middle
from pathgp.operators.streamed import Streamed

# In prepared units: the radius up to which gradients in the hyperparameters are accurate to 1e-3.
_GRADIENT_RADIUS = 4096.0


class Fused(Streamed):
    """K at the inputs X in tiles that live in registers: time O(n^2 (d + s)), memory O(n (d + s)).

    After construction no method waits for the device. The symmetry of K is not used: a tile that serves two row blocks
    would have to add to both, in an order that changes from call to call.

    Args:
        kernel: sums, products and scales of SquaredExponential, Matern (1/2, 3/2, 5/2), RationalQuadratic,
            Periodic, Linear, and Tanimoto for counts.
        X: inputs (n, d), float32.
        memory: budget in bytes for the blocks.
        precision: of products; gradients are always "high".
        member: as for `Streamed`. A member's part are its rows.
    """

    name = "fused"

    def __init__(
        self, kernel: Kernel, X: Tensor, memory: int, precision: str = "high", member: tuple[int, int] = (0, 1)
    ) -> None:
        super().__init__(kernel, X, memory, member)
        self.own = share(len(X), *member)
        self.expression = Expression(kernel, X.shape[1])
        self.centre = middle(X.to(torch.float64))
        with torch.no_grad():
            prepared = self.expression.points(X, self.centre)
            self.extent = Extent.of(self.expression, prepared)
            frame = Frame.around(self.extent, precision)
            self.engine = Engine(frame, precision)
            self.points = frame.pack(prepared)

    def product(self, V: Tensor, start: Tensor) -> Tensor:
        self.engine.add_product(self._rows(self.points), self.points, V, start[self.own])
        return start

    def rows(self, index: Tensor, V: Tensor, start: Tensor, support: Tensor | None = None) -> Tensor:
        """start + K[index, :] V; ``support``: rows outside of which V is zero."""
        own = share(len(index), *self.member)
        points, V = (self.points, V) if support is None else (self.points.take(support), V[support])
        self.engine.add_product(self.points.take(index[own]), points, V, start[own])
        return start

    def columns(self, index: Tensor, D: Tensor) -> Tensor:
        result = torch.zeros(len(self.X), D.shape[1], dtype=D.dtype, device=D.device)
        own = share(len(index), *self.member)
        return self.engine.add_product(self.points, self.points.take(index[own]), D[own], result)

    def block(self, index: Tensor) -> Tensor:
        return self.between(index, index)

    def blocks(self, index: Tensor) -> Tensor:
        """K[I, I] for all rows I of an index (g, b), in one launch: (g, b, b)."""
        engine, points = self._exact
        return engine.evaluate_blocks(points.take(index), *index.shape)

    def between(self, index: Tensor, other: Tensor) -> Tensor:
        engine, points = self._exact
        return engine.evaluate(points.take(index), points.take(other))

    def matrix(self, into: Tensor | None = None) -> Tensor:
        engine, points = self._exact
        return engine.evaluate(points, points)

    def strip(self, index: Tensor) -> Tensor:
        engine, points = self._exact
        return engine.evaluate(points.take(index), points)

    def bilinear(
        self, L: Tensor, R: Tensor, learned: list[Tensor], symmetric: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """One pass over K.

        W = L R^T is made symmetric, which takes twice as many columns. Then the gradient in the points is twice that in
        the rows' points, and autograd takes it to the hyperparameters, which multiplies it by the points. For distant
        points rounding in float32 would dominate, and the gradient is streamed.
        """
        leaves = zip(self.expression.kinds, self.extent.radii, strict=True)
        if any(radius > _GRADIENT_RADIUS for kind, radius in leaves if kind not in ("linear", "tanimoto")):
            return super().bilinear(L, R, learned, symmetric)
        if not symmetric:
            L, R = torch.cat([L, R], 1), torch.cat([0.5 * R, 0.5 * L], 1)
        engine, points = self._exact
        value, numbers, grads = engine.pull(self._rows(points), points, L[self.own], R)
        with torch.enable_grad():
            prepared = self.expression.points(self.X[self.own], self.centre)
            outputs = [*prepared, *self.expression.numbers(), self.expression.coefficient()]
        factor = self.extent.coefficient
        outer = [*(2.0 * factor * grad for grad in grads), *(factor * number for number in numbers), value]
        reached = [(o, g) for o, g in zip(outputs, outer, strict=True) if o.requires_grad]
        found: tuple[Tensor | None, ...] = (None,) * len(learned)
        if learned and reached:
            tensors, gradients = zip(*reached, strict=True)
            found = torch.autograd.grad(tensors, learned, gradients, allow_unused=True)
        pairs = zip(learned, found, strict=True)
        return factor * value, [torch.zeros_like(p) if grad is None else grad for p, grad in pairs]

    def _rows(self, points: Points) -> Points:
        """The rows of this member."""
        if self.own.stop - self.own.start == points.n:
            return points
        return points.take(torch.arange(self.own.start, self.own.stop, device=self.X.device))

    @cached_property
    def _exact(self) -> tuple[Engine, Points]:
        """Engine and points for entries and gradients, always of high precision."""
        frame = Frame.around(self.extent, exact=True)
        if frame.structure == self.engine.frame.structure:
            return self.engine, self.points
        with torch.no_grad():
            return Engine(frame), frame.pack(self.expression.points(self.X, self.centre))


def fused_cross(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor) -> Tensor:
    """K(X, Z) V: (m, s), float32. Time O(m n (d + s)), memory O((m + n) (d + s))."""
    expression = Expression(kernel, X.shape[1])
    with torch.no_grad():
        centre = middle(Z.to(torch.float64))
        left, right = expression.points(X, centre), expression.points(Z, centre)
        frame = Frame.around(Extent.of(expression, left, right))
        return Engine(frame).add_product(frame.pack(left), frame.pack(right), V, V.new_zeros(len(X), V.shape[1]))


def fused_cross_gradient(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, outer: Tensor) -> Tensor:
    """The gradient of sum(outer * K(X, Z) V) in X: (m, d), at the cost of a product."""
    expression = Expression(kernel, X.shape[1])
    centre = middle(Z.to(torch.float64))
    with torch.enable_grad():
        inputs = X.detach().requires_grad_()
        left = expression.points(inputs, centre)
    with torch.no_grad():
        right = expression.points(Z, centre)
        extent = Extent.of(expression, left, right)
        frame = Frame.around(extent, exact=True)
        _, _, grads = Engine(frame).pull(frame.pack(left), frame.pack(right), outer, V)
    (grad,) = torch.autograd.grad(left, inputs, [extent.coefficient * g for g in grads])
    return grad


def fallback_reason(kernel: Kernel, X: Tensor, *others: Tensor) -> str:
    """Why K between these inputs has no fused backend; empty if it has one."""
    if X.dtype != torch.float32:
        return f"fused products are for float32 inputs, these are {X.dtype}"
    if any(isinstance(inputs, CountRows) for inputs in (X, *others)):
        return "fused products are for dense inputs, these are sparse"
    if reason := missing(X.device):
        return reason
    try:
        expression = Expression(kernel, X.shape[1])
        if reason := expression.fallback_reason(X, *others):
            return reason
        with torch.no_grad():
            _check_room(expression, X, *others)
    except ValueError as error:
        return str(error)
    return ""


def _check_room(expression: Expression, *sets: Tensor) -> None:
    """ValueError if tiles do not fit, if the inputs of a linear kernel differ too much in size, or if inputs with many
    columns lie too far apart.

    Points are prepared, O(n d), only for many columns and for linear kernels, where the form of the points matters.
    """
    last = sets[-1]
    columns = [part.shape[1] for part in expression.points(last[:0], last.new_zeros(last.shape[1]))]
    widths = [half_width(c) for kind, c in zip(expression.kinds, columns, strict=True) if kind != "tanimoto"]
    # The most shared memory that this number of columns can need.
    leaf = Leaf("", "triple", 0, 0, 0, 0, -1, HELD_LEVELS if len(widths) < len(columns) else 0)
    if "linear" not in expression.kinds and max(columns) <= DOUBLE_COLUMNS:
        with suppress(ValueError):
            return check_room(Structure(Node("leaf"), (leaf,), sum(widths), 0), last.device)
    centre = middle(last.to(torch.float64))
    extent = Extent.of(expression, *(expression.points(X, centre) for X in sets))
    for exact in (False, True):
        check_room(Frame.around(extent, exact=exact).structure, last.device)
