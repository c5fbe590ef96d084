"""The length scales of a kernel expression, with the points whose distances they divide."""

from __future__ import annotations

from torch import Tensor

from pathgp.kernels.base import Kernel
from pathgp.kernels.expression import leaves
from pathgp.kernels.gneiting import Gneiting
from pathgp.kernels.parameters import Positive, positive
from pathgp.kernels.sphere import Embedding
from pathgp.kernels.stationary import Stationary


def length_scales(kernel: Kernel, X: Tensor) -> list[tuple[Positive, Tensor]]:
    """All length scales of the stationary parts of a kernel, each with its points (n, c), for inputs X (n, d).

    ValueError if a vector of length scales has another number of entries than its points have columns.
    """
    embedding = Embedding(kernel, X.shape[1])
    points = embedding(X)
    found: list[tuple[Positive, Tensor]] = []
    for leaf, columns in leaves(embedding.kernel, range(points.shape[1])):
        if isinstance(leaf, Stationary):
            found.append((positive(leaf, "lengthscale"), points[:, list(columns)]))
        elif isinstance(leaf, Gneiting):
            found += leaf.scales(points[:, list(columns)])
    for parameter, columns_of_leaf in found:
        parameter.matching(columns_of_leaf.shape[1], X.device)
    return found
