"""The base of all kernels: a module that maps two sets of inputs to a matrix."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from pathgp.kernels.parameters import refuse_value_of_part, short

if TYPE_CHECKING:
    from pathgp.kernels.algebra import Product, Sum


class Kernel(nn.Module):
    """A covariance function k(x, z).

    ``kernel(X, Z)`` is the dense (n, m) matrix, ``kernel(X)`` the square one with an exact diagonal,
    ``kernel.diag(X)`` the n variances. Floating inputs keep their dtype and device, integer inputs become
    float64. Hyperparameters are float64 and follow the inputs. Everything is differentiable in the inputs
    and in the hyperparameters.

    A kernel that depends on part of the columns names them in ``active_dims``.
    """

    # What `features` builds. The package pathgp.features sets it on import, because kernels import nothing of the
    # packages that use them.
    feature_map: ClassVar[Callable[..., Any]]
    # Why a kernel has no features, for kernels that have none.
    no_features: ClassVar[str] = "neither its spectral measure nor a finite feature map is known"

    def __init__(self, active_dims: Sequence[int] | None = None) -> None:
        super().__init__()
        self.active_dims = _check_dims(active_dims)

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_value_of_part(self, name)
        super().__setattr__(name, value)

    @property
    def parts(self) -> list[Kernel]:
        """The kernels that this one combines; none for an elementary kernel."""
        children = (c for child in self.children() for c in (child if isinstance(child, nn.ModuleList) else [child]))
        return [child for child in children if isinstance(child, Kernel)]

    def forward(self, X: Tensor, Z: Tensor | None = None) -> Tensor:
        X, Z = self._select_both(X, Z)
        if X.shape[1] != Z.shape[1]:
            raise ValueError(f"X has {X.shape[1]} columns and Z has {Z.shape[1]}: they must agree")
        if X.dtype != Z.dtype or X.device != Z.device:
            raise TypeError(f"X is {X.dtype} on {X.device} and Z is {Z.dtype} on {Z.device}: convert one of them")
        return self._matrix(X, Z)

    def contract(self, W: Tensor, X: Tensor, Z: Tensor | None = None) -> Tensor:
        """sum_ij W_ij k(x_i, z_j), a float64 scalar, differentiable in the hyperparameters.

        The same as ``(W * kernel(X, Z)).sum()``, in fewer passes over the matrix. Without Z the diagonal is exact.
        """
        return self._contract(W, *self._select_both(X, Z))

    def diag(self, X: Tensor) -> Tensor:
        """k(x_i, x_i) for every row: (n,). Time O(n d)."""
        return self._diagonal(self._select(X, "X"))

    def coordinates(self, X: Tensor) -> Tensor:
        """Columns (n, c) in which inputs at a small distance are strongly correlated, in the dtype of X."""
        with torch.no_grad():
            return self._coordinates(self._select(X, "X")).to(X.dtype)

    def features(
        self, num: int, generator: torch.Generator | None = None, paths: int | None = None, dim: int | None = None
    ) -> Any:
        """Features phi with E[phi(x) . phi(z)] = k(x, z), at most ``num`` columns: a `pathgp.features.FeatureMap`.

        Args:
            num: the largest number of columns; ``phi.num`` is the actual number.
            generator: source of the draws; None draws a fresh seed (recorded as ``phi.seed``).
            paths: with ``paths=s`` the map holds s independent draws, one per path.
            dim: the number of columns of X; needed only if the number of features depends on it
                (Linear and Periodic without ``active_dims`` or one parameter per dimension).

        Raises:
            NotImplementedError: for a kernel without features; it says what works instead.
        """
        return Kernel.feature_map(self, num, generator, paths, dim)

    def __add__(self, other: Kernel) -> Sum:
        from pathgp.kernels.algebra import Sum

        return Sum(self, _require_kernel(other))

    def __mul__(self, other: Kernel) -> Product:
        from pathgp.kernels.algebra import Product

        return Product(self, _require_kernel(other))

    def __rmul__(self, other: object) -> Product:
        return self * _require_kernel(other)

    def __repr__(self) -> str:
        shown = []
        for name in inspect.signature(type(self)).parameters:
            value = getattr(self, name, None)
            if isinstance(value, Tensor) and value.ndim < 2:
                shown.append(f"{name}={short(value)}")
            elif isinstance(value, float | int | tuple):
                shown.append(f"{name}={list(value) if isinstance(value, tuple) else f'{value:g}'}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _matrix(self, X: Tensor, Z: Tensor) -> Tensor:
        """The (n, m) matrix at checked inputs; a fresh tensor, since sums and products accumulate in it.

        ``Z is X`` for the square matrix of one set of inputs, whose diagonal must be exact.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define its matrix: _matrix(X, Z), (n, m)")

    def _diagonal(self, X: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not define its diagonal: _diagonal(X), (n,)")

    def _coordinates(self, X: Tensor) -> Tensor:
        return X

    def _contract(self, W: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return torch.dot(self._matrix(X, Z).flatten(), W.flatten()).to(torch.float64)

    def _select_both(self, X: Tensor, Z: Tensor | None) -> tuple[Tensor, Tensor]:
        """The active columns of X and Z; the same tensor twice for one set of inputs."""
        chosen = self._select(X, "X")
        return chosen, chosen if Z is None or Z is X else self._select(Z, "Z")

    def _select(self, X: Tensor, name: str) -> Tensor:
        X = as_inputs(X, name)
        if self.active_dims is None:
            return X
        if max(self.active_dims) >= X.shape[1]:
            raise ValueError(
                f"{type(self).__name__} acts on column {max(self.active_dims)}, "
                f"but {name} has only {X.shape[1]} columns"
            )
        return X[:, list(self.active_dims)]


def as_inputs(X: Tensor, name: str) -> Tensor:
    """X (n, d) as kernels read it: floating, integers as float64."""
    if not isinstance(X, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(X).__name__}")
    if X.ndim != 2:
        raise ValueError(f"{name} must have two dimensions (rows, columns), got shape {tuple(X.shape)}")
    if X.shape[1] == 0:
        raise ValueError(f"{name} has no columns, shape {tuple(X.shape)}: a kernel needs at least one input")
    return X if X.is_floating_point() else X.to(torch.float64)


def _require_kernel(other: object) -> Kernel:
    if isinstance(other, Kernel):
        return other
    raise TypeError(
        f"a kernel combines with kernels, got {type(other).__name__}: "
        "to multiply a kernel by a number s^2 use kernels.Scale(kernel, signal=s)"
    )


def _check_dims(active_dims: Sequence[int] | None) -> tuple[int, ...] | None:
    if active_dims is None:
        return None
    dims = tuple(int(i) for i in active_dims)
    if not dims or min(dims) < 0 or len(set(dims)) != len(dims):
        raise ValueError(f"active_dims must be distinct non-negative column numbers, got {active_dims}")
    return dims
