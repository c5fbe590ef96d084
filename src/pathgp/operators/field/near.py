"""The part of K between close points, k - k_smooth, in dense tiles of blocks of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from pathgp.compute.boxes import bounding_boxes, close_pairs
from pathgp.compute.compact_groups import group_nearby_rows
from pathgp.compute.memory import spans
from pathgp.compute.threads import run_in_order, run_separately
from pathgp.kernels import Kernel
from pathgp.kernels.expression import leaves
from pathgp.operators.field.split import Split
from pathgp.operators.structured import ValueAndGradients

# Points of a block.
BLOCK = 64
# Entries of the tiles that are evaluated together, and bytes per entry meanwhile.
_AT_ONCE, _AT_ONCE_GPU, _BYTES_PER_ENTRY = {"cpu": 2**18}, 2**26, 64
# Share of the budget for tiles that are kept.
KEPT_SHARE = 0.25


class Blocks:
    """Points (n, d) in blocks of up to `BLOCK` neighbours, all of the same width: shorter ones repeat a point."""

    def __init__(self, X: Tensor) -> None:
        self.count = len(X)
        self.rows = group_nearby_rows(X, BLOCK)
        self.width = self.rows.shape[1]
        self.points = X[self.rows.where(self.rows < self.count, self.rows[:, :1])]
        self.boxes = bounding_boxes(self.points)
        places = torch.empty(self.count + 1, dtype=torch.long, device=X.device)
        places[self.rows.flatten()] = torch.arange(self.rows.numel(), device=X.device)
        self.places = places[:-1]

    def split(self, V: Tensor) -> Tensor:
        """The rows of V (n, s) by blocks, with zeros for repeated points: (blocks, width, s)."""
        return pad(V, (0, 0, 0, 1))[self.rows]

    def add(self, parts: Tensor, result: Tensor) -> None:
        """Add blocks (blocks, width, s) to a result (n, s)."""
        result += parts.flatten(0, 1)[self.places]


class NearPart:
    """Tiles of k - k_smooth for all pairs of blocks of targets and sources that are close.

    As many tiles as fit into a quarter of the budget are kept, the others are evaluated in every product. Without
    ``sources`` the matrix is symmetric, and tiles below the diagonal are the transposes of those above.
    """

    def __init__(
        self, kernel: Kernel, split: Split, targets: Blocks, sources: Blocks | None, dtype: torch.dtype, memory: int
    ) -> None:
        self.kernel, self.separation, self.targets, self.dtype = kernel, split, targets, dtype
        self.sources, self.symmetric = sources or targets, sources is None
        with torch.no_grad():
            self.smooth = split.polynomials(kernel, dtype, targets.points.device)
        dim = targets.points.shape[2]
        close = partial(is_close, kernel, split, dim)
        self.pairs = close_pairs(targets.boxes, self.sources.boxes, close, self.symmetric)
        device = targets.points.device
        at_once = min(_AT_ONCE.get(device.type, _AT_ONCE_GPU), memory // (8 * _BYTES_PER_ENTRY))
        self.entries = self.targets.width * self.sources.width
        self.batches = list(spans(len(self.pairs), max(1, at_once // self.entries)))
        fitting = int(KEPT_SHARE * memory) // (self.entries * dtype.itemsize)
        kept = [part for part in self.batches if part.stop <= fitting]
        shape = (kept[-1].stop if kept else 0, targets.width, self.sources.width)
        self.tiles = torch.empty(shape, dtype=dtype, device=device)
        with torch.no_grad():
            run_separately(kept, lambda part: self.tiles[part].copy_(self._evaluate(part)), device)

    def product(self, V: Tensor, result: Tensor) -> None:
        """Add the product with V (sources, s) to the result (targets, s)."""
        blocks = self.sources.split(V)
        total = blocks.new_zeros(*self.targets.rows.shape, V.shape[1])

        def multiply(part: slice) -> tuple[Tensor, Tensor | None]:
            tiles = self.tiles[part] if part.stop <= len(self.tiles) else self._evaluate(part)
            rows, columns = self.pairs[part].unbind(1)
            product = torch.bmm(tiles, blocks[columns])
            if not self.symmetric:
                return product, None
            # A tile on the diagonal is there once.
            transposed = torch.bmm(tiles.mT, blocks[rows]) * (rows != columns).view(-1, 1, 1)
            return product, transposed

        def add(part: slice, products: tuple[Tensor, Tensor | None]) -> None:
            for index, values in zip(self.pairs[part].unbind(1), products, strict=True):
                if values is not None:
                    total.index_add_(0, index, values)

        with torch.no_grad():
            run_in_order(self.batches, multiply, add, V.device)
        self.targets.add(total, result)

    def bilinear(self, L: Tensor, R: Tensor, learned: list[Tensor]) -> ValueAndGradients:
        """sum_j L_j^T K_near R_j and its gradient in the learned parameters; for the symmetric matrix."""
        left, right = self.targets.split(L), self.targets.split(R)
        value = torch.zeros((), dtype=torch.float64, device=L.device)
        grads = [torch.zeros_like(parameter) for parameter in learned]

        def contract(part: slice) -> ValueAndGradients:
            rows, columns = self.pairs[part].unbind(1)
            weights = torch.bmm(left[rows], right[columns].mT)
            weights += torch.bmm(right[rows], left[columns].mT) * (rows != columns).view(-1, 1, 1)
            return contract_values(lambda: self._evaluate(part), weights, learned)

        def add(part: slice, found: ValueAndGradients) -> None:
            value.add_(found[0])
            for grad, own in zip(grads, found[1], strict=True):
                grad += own

        run_in_order(self.batches, contract, add, L.device)
        return value, grads

    def _evaluate(self, part: slice) -> Tensor:
        """Tiles of some pairs of blocks. Coordinates are relative to a point of the block: close points keep digits."""
        rows, columns = self.pairs[part].unbind(1)
        left, right = self.targets.points[rows], self.sources.points[columns]
        origin = left[:, :1]
        left = (left - origin).to(self.dtype).movedim(2, 0).contiguous()
        right = (right - origin).to(self.dtype).movedim(2, 0).contiguous()
        differences = [a.unsqueeze(2) - b.unsqueeze(1) for a, b in zip(left, right, strict=True)]
        return self.separation.near(self.kernel, differences, None if torch.is_grad_enabled() else self.smooth)


def contract_values(evaluate: Callable[[], Tensor], weights: Tensor, learned: list[Tensor]) -> ValueAndGradients:
    """sum of weights times evaluate(), float64, and its gradient in the learned parameters."""
    with torch.enable_grad():
        values = evaluate()
        part = torch.dot(values.flatten(), weights.flatten().to(values.dtype)).to(torch.float64)
    grads: list[Tensor | None] = [None] * len(learned)
    if learned and part.requires_grad:
        grads = list(torch.autograd.grad(part, learned, allow_unused=True))
    return part.detach(), [
        torch.zeros_like(p) if grad is None else grad for p, grad in zip(learned, grads, strict=True)
    ]


def is_close(kernel: Kernel, split: Split, dim: int, gap: Tensor) -> Tensor:
    """Whether boxes with these gaps (pairs, dim) have points closer than the radius of one of the kernels."""
    close = torch.zeros(len(gap), dtype=torch.bool, device=gap.device)
    for leaf, columns in leaves(kernel, range(dim)):
        radius = split.radii[leaf]  # type: ignore[index]
        if radius:
            scale = leaf.lengthscales(len(columns), gap.device).detach()  # type: ignore[operator]
            close |= (gap[:, list(columns)] / scale).square().sum(1) < radius**2
    return close


def estimate_entries(kernel: Kernel, split: Split, targets: Blocks, sources: Blocks | None, sample: int = 48) -> float:
    """The number of entries of all tiles, from some of the blocks."""
    others = sources or targets
    count, dim = len(targets.points), targets.points.shape[2]
    chosen = torch.linspace(0, count - 1, min(count, sample), device=targets.points.device).long()
    lower, upper = targets.boxes.lower[chosen], targets.boxes.upper[chosen]
    gap = torch.maximum(lower.unsqueeze(1) - others.boxes.upper, others.boxes.lower - upper.unsqueeze(1)).clamp_min(0.0)
    pairs = int(is_close(kernel, split, dim, gap.flatten(0, 1)).sum()) * count / len(chosen)
    return pairs * targets.width * others.width * (0.5 if sources is None else 1.0)
