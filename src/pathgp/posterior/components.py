"""The parts of a sum: for k = k_1 + k_2 + ... the posterior of each f_c in f = f_1 + f_2 + ...

The f_c are independent in the prior and observed only through their sum. Given y, with H = sum_c K_c + Sigma and the
weights v and alpha_j of the whole posterior,

    mean_c(x) = k_c(x, X) v,    var_c(x) = k_c(x, x) - k_c(x, X) H^-1 k_c(X, x),
    path_cj(x) = f_cj(x) + k_c(x, X) (v - alpha_j),

where f_cj is the contribution of the features of k_c to prior path j: no further solve. With a trend P takes the place
of H^-1 (see `pathgp.posterior.trend`).
Duvenaud (2014), section 2.4.5; thesis, section 2.1.2 for the paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pathgp.compute.inputs import Array
from pathgp.kernels import Kernel, Matern, Product, Scale, Sum
from pathgp.kernels.expression import Columns, expand, fold
from pathgp.posterior.table import Posterior, _in_parts


@dataclass(frozen=True, repr=False, eq=False)
class Component:
    """One summand of a posterior, in the units of y. Returned by `Posterior.components`.

    Attributes:
        name: a description of the kernel, unique among the components.
        kernel: the covariance function k_c of the summand, including scales of the whole sum.
    """

    name: str
    kernel: Kernel
    _posterior: Posterior
    _terms: range | None

    def mean(self, Xs: Array) -> Array:
        """Posterior mean (m,): k_c(Xs, X) v. Time O(m n d), memory one tile. Differentiable in Xs."""
        inputs, scaled = self._posterior._read(Xs)
        return inputs.to_caller(self._restore(self._posterior._update(self._weights()[:, :1], self.kernel)(scaled)[0]))

    def paths(self, Xs: Array) -> Array:
        """This component of every path at Xs: (s, m). Differentiable in Xs.

        path_cj(x) = f_cj(x) + k_c(x, X) (v - alpha_j). Time O(m s (n + features of k_c)), memory one tile.
        """
        prior = self._posterior._require_paths()
        inputs, scaled = self._posterior._read(Xs)
        weights = self._weights()
        update = self._posterior._update(weights[:, :1] - weights[:, 1:], self.kernel)

        def values(rows: slice) -> Tensor:
            return self._restore(prior(scaled[rows], self._terms) + update(scaled[rows]))

        num, rows = self._posterior.num_samples, len(self._posterior.system.X)
        return inputs.to_caller(_in_parts(values, scaled, num, rows))

    def variance(self, Xs: Array, method: str | None = None) -> Array:
        """Posterior variance (m,) of f_c, by the methods of `Posterior.variance`.

        The variances of the components do not add up to that of f: the data determine the sum, so that the components
        are negatively correlated, and the sum is often more certain than its parts.
        """
        inputs, scaled = self._posterior._read(Xs)
        variance = self._posterior._variance(scaled, method, self.kernel, self._terms)
        if self._posterior.least_squares is not None:
            is_exact = self._posterior._choose_method(method) == "solve"
            factor = self._posterior._trend_factor(inputs.X, scaled, is_exact, self.kernel)
            variance = variance + factor.square().sum(1).to(variance)
        return inputs.to_caller(self._posterior.scaling.restore_variance(variance))

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self.kernel!r})"

    def _weights(self) -> Tensor:
        """The weights v and alpha (n, 1 + s) of functions about the trend, if there is one."""
        return self._posterior._project(self._posterior.weights)

    def _restore(self, values: Tensor) -> Tensor:
        scaling = self._posterior.scaling
        # The shift of the targets belongs to no component.
        return scaling.restore(values, mean=-scaling.target_shift)


def components(posterior: Posterior) -> dict[str, Component]:
    """The components of a posterior by name, in the order of the sum."""
    kernels = summands(posterior.model.kernel)
    result: dict[str, Component] = {}
    start = 0
    for name, kernel in zip(_names(kernels), kernels, strict=True):
        terms = None
        if posterior.prior is not None:
            terms = range(start, start + len(expand(kernel)))
            start = terms.stop
        result[name] = Component(name, kernel, posterior, terms)
    return result


def summands(kernel: Kernel) -> list[Kernel]:
    """The kernels k_c with k = sum_c k_c: sums in sums are flat, a scale of a sum is a sum of scales.

    A product that contains a sum stays one summand. The summands share the parameters of the kernel, and their
    terms (`expand`), one summand after the other, are those of the kernel in the same order.
    """

    def visit(node: Kernel, columns: Columns, parts: Iterator[list[Kernel]]) -> list[Kernel]:
        if isinstance(node, Sum):
            found = [summand for part in parts for summand in part]
            return found if node.active_dims is None else [Sum(part, active_dims=node.active_dims) for part in found]
        if isinstance(node, Scale) and len(found := next(parts)) > 1:
            return [node.around(part, node.active_dims) for part in found]
        return [node]

    return fold(kernel, visit)


def _names(kernels: list[Kernel]) -> list[str]:
    """A name for each kernel; equal names are numbered."""
    names = [fold(kernel, _describe)[0] for kernel in kernels]
    numbers = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return [f"{name} {i}" if names.count(name) > 1 else name for name, i in zip(names, numbers, strict=True)]


def _describe(kernel: Kernel, columns: Columns, parts: Iterator[tuple[str, bool]]) -> tuple[str, bool]:
    """The kernel without its hyperparameters, which change when they are learned; whether it is a sum."""
    is_sum = isinstance(kernel, Sum) and len(kernel.parts) > 1
    if isinstance(kernel, Scale):
        text, is_sum = next(parts)
    elif isinstance(kernel, Product):
        text = " * ".join(f"({part})" if part_is_sum else part for part, part_is_sum in parts)
    elif isinstance(kernel, Sum):
        text = " + ".join(part for part, _ in parts)
    else:
        text = f"Matern(nu={kernel.nu:g})" if isinstance(kernel, Matern) else type(kernel).__name__
    if kernel.active_dims is not None:
        text = f"({text}){list(kernel.active_dims)}" if " " in text else f"{text}{list(kernel.active_dims)}"
    return text, is_sum
