"""A kernel as a tree of sums, products and scales over leaves, each a function of prepared points.

Stationary leaves, Periodic included, are radial profiles of the squared distance of their prepared points, Linear is
their inner product, and Tanimoto compares counts as they are. Preparation is float64 torch code with a graph, which
carries gradients in the prepared points and in the numbers of the tree on to the hyperparameters and the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathgp import kernels
from pathgp.kernels.expression import Columns, fold

# Factors of the prepared points, with which a profile is a function of 2^-sq or of 2^-sqrt(sq) without a further
# multiplication.
_UNITS = {
    "squared_exponential": math.sqrt(0.5 * math.log2(math.e)),
    "matern12": math.log2(math.e),
    "matern32": math.sqrt(3.0) * math.log2(math.e),
    "matern52": math.sqrt(5.0) * math.log2(math.e),
    "rational_quadratic": 1.0,
}
_KINDS: dict[type, str] = {
    kernels.SquaredExponential: "squared_exponential",
    kernels.Periodic: "squared_exponential",
    kernels.RationalQuadratic: "rational_quadratic",
    kernels.Linear: "linear",
    kernels.Tanimoto: "tanimoto",
}
_MATERN = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}

# The most levels of all columns of counts together, and the largest count. Tiles hold a byte for each level.
_LEVELS, _COUNT = 8192, 255


class Node(NamedTuple):
    """A node of an expression: "sum", "product", "scale" with the place of its number, "leaf" with the leaf's."""

    kind: str
    place: int = -1
    children: tuple[Node, ...] = ()


class Expression:
    """kernel = coefficient * tree, at inputs with this number of columns; ValueError names what is not supported.

    The coefficient is the product of the squared signals of the outer scales.

    Attributes:
        kinds: the profile of every leaf.
        tree: the node at the root; hashable.
        shapes: for every leaf the place of its shape parameter among the numbers, or -1. The numbers are the squared
            signals inside the tree and the shape parameters of the leaves.
    """

    def __init__(self, kernel: kernels.Kernel, columns: int) -> None:
        self.kinds: list[str] = []
        self.shapes: list[int] = []
        self._leaves: list[tuple[kernels.Kernel, tuple[int, ...]]] = []
        self._outer: list[kernels.Scale] = []
        self._numbers: list[kernels.Scale | kernels.RationalQuadratic] = []
        self._inside = False  # whether the walk has passed the outer scales
        self.tree = fold(kernel, self._visit, range(columns))

    def _visit(self, kernel: kernels.Kernel, columns: Columns, parts: Iterator[Node]) -> Node:
        if type(kernel) is kernels.Scale:
            if not self._inside:
                self._outer.append(kernel)
                return next(parts)
            self._numbers.append(kernel)
            return Node("scale", len(self._numbers) - 1, tuple(parts))
        self._inside = True
        if type(kernel) in (kernels.Sum, kernels.Product):
            return Node("sum" if type(kernel) is kernels.Sum else "product", children=tuple(parts))
        self.kinds.append(leaf_kind(kernel))
        self._leaves.append((kernel, tuple(columns or ())))
        self.shapes.append(len(self._numbers) if type(kernel) is kernels.RationalQuadratic else -1)
        if type(kernel) is kernels.RationalQuadratic:
            self._numbers.append(kernel)
        return Node("leaf", len(self._leaves) - 1)

    def coefficient(self) -> Tensor:
        """The factor in front of the tree: a scalar, float64, with its graph."""
        return math.prod((k.signal.square() for k in self._outer), start=torch.ones((), dtype=torch.float64))

    def numbers(self) -> list[Tensor]:
        """The scalars inside the tree, float64, with their graphs."""
        return [k.signal.square() if isinstance(k, kernels.Scale) else k.alpha for k in self._numbers]

    def points(self, X: Tensor, centre: Tensor) -> list[Tensor]:
        """The prepared points of every leaf at X (n, d): float64, (n, c) each, with their graphs.

        Stationary leaves see X - centre, a constant (d,) that changes no kernel: hyperparameters then move points
        about the middle of the data, and their gradients are sums of small numbers.
        """
        X = X.to(torch.float64)
        centred = X - centre
        plain = (kernels.Linear, kernels.Tanimoto)
        return [_prepare(k, _select(X if isinstance(k, plain) else centred, dims)) for k, dims in self._leaves]

    @property
    def differentiable(self) -> bool:
        """Whether gradients in the inputs are those of the prepared points."""
        return "tanimoto" not in self.kinds

    def fallback_reason(self, *sets: Tensor) -> str:
        """Why there is no fused product for these inputs, or "": Tanimoto needs counts, with few levels in the last."""
        for kernel, dims in self._leaves:
            if isinstance(kernel, kernels.Tanimoto):
                parts = [_select(X, dims) for X in sets if len(X)]
                counts = torch.stack([((A >= 0) & A.eq(A.round())).all() for A in parts]).all()
                tops = parts[-1].amax(0)
                whole, levels, top = torch.stack([counts.to(tops), tops.sum(), tops.max()]).tolist()
                if not whole:
                    return "fused Tanimoto kernels are for counts"
                if levels > _LEVELS or top > _COUNT:
                    return f"the largest counts of all columns add up to {levels:.0f}, fused products take {_LEVELS}"
        return ""


def leaf_kind(kernel: kernels.Kernel) -> str:
    """The profile of a leaf, or a ValueError with its name."""
    kind = _MATERN.get(kernel.nu) if type(kernel) is kernels.Matern else _KINDS.get(type(kernel))
    if kind is None:
        raise ValueError(f"no fused tile for {type(kernel).__name__}")
    return kind


def bounds(tree: Node, leaves: Sequence[float], numbers: Sequence[float]) -> tuple[float, dict[int, float]]:
    """The largest value of a tree, given those of its leaves, and the largest derivative in the value of each leaf."""
    if tree.kind == "leaf":
        return leaves[tree.place], {tree.place: 1.0}
    parts = [bounds(child, leaves, numbers) for child in tree.children]
    values = [value for value, _ in parts]
    if tree.kind == "sum":
        return sum(values), {i: gain for _, gains in parts for i, gain in gains.items()}
    factor = numbers[tree.place] if tree.kind == "scale" else 1.0
    factors = [factor * math.prod(values[:j] + values[j + 1 :]) for j in range(len(values))]
    gains = {i: f * gain for f, (_, of) in zip(factors, parts, strict=True) for i, gain in of.items()}
    return factor * math.prod(values), gains


def _select(X: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Columns of X; adjacent ones as a slice, since an index would first have to be copied to the device."""
    first, last = dims[0], dims[-1]
    return X[:, first : last + 1] if dims == tuple(range(first, last + 1)) else X[:, list(dims)]


def _prepare(kernel: kernels.Kernel, X: Tensor) -> Tensor:
    if isinstance(kernel, kernels.Tanimoto):
        return X.detach()
    if isinstance(kernel, kernels.Linear):
        return kernel.exact_features(X)
    unit = _UNITS[leaf_kind(kernel)]
    if isinstance(kernel, kernels.Periodic):
        return kernel.embed(X) * unit
    assert isinstance(kernel, kernels.Matern | kernels.SquaredExponential | kernels.RationalQuadratic)
    return X * (unit / kernel.lengthscales(X.shape[1], X.device))
