"""Split a stationary kernel into a smooth function and a rest of short range, k = k_smooth + k_near.

Each elementary kernel p(r^2) keeps its values beyond a radius R. Inside, p_smooth is a polynomial in r^2 that continues
p smoothly: it interpolates p at Chebyshev points around R^2. A kernel expression with p_smooth in place of p is
k_smooth. The rest is zero for pairs that are farther apart than all radii.

The spectrum of p_smooth falls off quickly beyond a frequency of about 10 / R: a coarse grid resolves it (`bandwidth`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.kernels.blocks import stationary_values
from pathgp.kernels.expression import expand, leaves
from pathgp.kernels.stationary import Stationary

# Half-width of the interval of r^2 / R^2 around 1 in which the polynomial interpolates p. Degrees, by accuracy:
# measured to need the smallest bandwidth.
_HALF_WIDTH, _DEGREES = 0.3, ((1e-4, 5), (1e-6, 7), (0.0, 9))
# Samples of a profile per radius, per length scale if there is no radius, and their largest number.
_PER_RADIUS, _PER_LENGTHSCALE, _MOST_SAMPLES = 24, 160, 2**17


Polynomials = dict[Stationary, tuple[Tensor, ...]]
"""The coefficients of p_smooth inside the radius, a polynomial in x = r^2 / R^2 - 1, from the constant one on."""


@dataclass
class Split:
    """The radius R of every elementary kernel, in its length scales; 0 for kernels that are smooth enough.

    accuracy: relative error of the product with white noise.  spectral_accuracy: error of the spectrum, relative to its
    largest value: eigenvalues of K that exceed the noise must be right, too.  dim: number of columns.
    """

    accuracy: float
    spectral_accuracy: float
    dim: int
    radii: dict[Stationary, float] = field(default_factory=dict)

    def with_radius(self, kernel: Kernel, radii: Tensor) -> Split:
        """The split with these radii (d,) in the units of the inputs, for the kernels that depend on all columns.

        The radius of a kernel, in its length scales, is the largest of its columns. The others have no near part: their
        pairs would be close in some columns, however far apart in the others.
        """
        chosen: dict[Stationary, float] = {}
        for leaf, columns in leaves(kernel, range(self.dim)):
            assert isinstance(leaf, Stationary)
            seen = {column for column in range(self.dim) if float(radii[column]) > 0.0}
            scales = leaf.lengthscales(len(columns), radii.device).detach()
            is_whole = seen <= set(columns)
            chosen[leaf] = float((radii[list(columns)] / scales).amax()) if is_whole else 0.0
        return replace(self, radii=chosen)

    def reach(self, kernel: Kernel) -> list[float]:
        """The largest radius in every column, in the units of the inputs."""
        result = [0.0] * self.dim
        for leaf, columns in leaves(kernel, range(self.dim)):
            assert isinstance(leaf, Stationary)
            scales = leaf.lengthscales(len(columns), torch.device("cpu")).detach().expand(len(columns))
            for column, scale in zip(columns, scales.tolist(), strict=True):
                result[column] = max(result[column], self.radii[leaf] * scale)
        return result

    def near(self, kernel: Kernel, differences: Sequence[Tensor], smooth: Polynomials | None = None) -> Tensor:
        """k - k_smooth at differences of inputs, one tensor per column; differentiable in the hyperparameters.

        ``smooth``: the result of `polynomials`, if it is known.
        """
        known = smooth or self.polynomials(kernel, differences[0].dtype, differences[0].device)

        def near_profile(leaf: Stationary, sq: Tensor) -> Tensor:
            return self._near_profile(leaf, sq, known)

        if all(len(term.leaves) == 1 for term in expand(kernel)):
            return stationary_values(kernel, differences, near_profile)
        smooth_values = stationary_values(kernel, differences, lambda leaf, sq: self._smooth_profile(leaf, sq, known))
        return stationary_values(kernel, differences, lambda leaf, sq: leaf.radial(sq)).sub_(smooth_values)

    def polynomials(self, kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Polynomials:
        """p_smooth inside the radius, for every elementary kernel that has one; differentiable."""
        found = {leaf for leaf, _ in leaves(kernel, range(self.dim)) if isinstance(leaf, Stationary)}
        return {leaf: self._coefficients(leaf, device).to(dtype).unbind() for leaf in found if self.radii[leaf]}

    def _smooth_profile(self, leaf: Stationary, sq: Tensor, smooth: Polynomials) -> Tensor:
        return leaf.radial(sq.clone()) - self._near_profile(leaf, sq, smooth)

    def _near_profile(self, leaf: Stationary, sq: Tensor, smooth: Polynomials) -> Tensor:
        """p - p_smooth, exactly zero beyond the radius; may overwrite ``sq``."""
        if leaf not in smooth:
            return torch.zeros_like(sq)
        x = (sq / self.radii[leaf] ** 2).sub_(1.0).clamp_(max=0.0)
        # The sign is 0 beyond the radius. Selection by a mask would take ten times as long as this multiplication.
        return _polynomial(smooth[leaf], x).sub_(leaf.radial(sq)).mul_(x.sign())

    def _coefficients(self, leaf: Stationary, device: torch.device) -> Tensor:
        """Those of the polynomial in x = r^2 / R^2 - 1, from the constant one on, float64."""
        degree = next(degree for limit, degree in _DEGREES if self.accuracy >= limit)
        k = torch.arange(degree + 1, dtype=torch.float64, device=device)
        x = _HALF_WIDTH * torch.cos(math.pi * (k + 0.5) / (degree + 1))
        values = leaf.radial((1.0 + x) * self.radii[leaf] ** 2)
        return torch.linalg.solve(x.unsqueeze(1) ** k, values)

    @torch.no_grad()
    def bandwidth(self, leaf: Stationary, reach: float) -> float:
        """The frequency, per length scale, beyond which the spectrum of p_smooth is negligible.

        ``reach``: the largest distance of two points, in length scales. The spectrum of a radial function f is the
        cosine transform of f(r) in one dimension, and the sine transform of r f(r), over the frequency, in three. In
        two it is close to their geometric mean.
        """
        radius = self.radii[leaf]
        reach = min(reach, leaf_range(leaf, self.accuracy))
        step = min(radius / _PER_RADIUS if radius else math.inf, 1.0 / _PER_LENGTHSCALE, reach / 64)
        count = min(_MOST_SAMPLES, 2 ** math.ceil(math.log2(2.0 * reach / step)))
        r = torch.arange(count, dtype=torch.float64) * step
        # Beyond the reach the function is free: it falls to zero smoothly.
        taper = 0.5 * torch.erfc((r / reach - 1.5) * 8.0)
        sq = r.square().to(next(leaf.parameters()).device)
        f = taper * self._smooth_profile(leaf, sq, self.polynomials(leaf, sq.dtype, sq.device)).cpu()
        even, odd = (
            torch.cat([f, f.new_zeros(1), f[1:].flip(0)]),
            torch.cat([r * f, f.new_zeros(1), -(r * f)[1:].flip(0)]),
        )
        frequency = torch.arange(count + 1, dtype=torch.float64).clamp_min(0.5) * math.pi / (count * step)
        in_one, in_three = torch.fft.rfft(even).real.abs(), torch.fft.rfft(odd).imag.abs() / frequency
        spectrum = in_one ** ((3 - self.dim) / 2) * in_three ** ((self.dim - 1) / 2)
        energy = spectrum.square() * frequency ** (self.dim - 1)
        tail = (energy.flip(0).cumsum(0).flip(0) / energy.sum()).sqrt()
        is_needed = (tail > self.accuracy) | (spectrum > self.spectral_accuracy * spectrum.max())
        # None is needed if p_smooth rounds to zero, as for a squared exponential with a radius of many length scales.
        last = int(torch.nonzero(is_needed)[-1]) if is_needed.any() else 0
        return float(frequency[last]) if last < 0.9 * count else math.inf


def leaf_range(leaf: Stationary, accuracy: float) -> float:
    """The distance, in length scales, beyond which a kernel is below a third of the accuracy."""
    r = torch.logspace(-2, 6, 1601, dtype=torch.float64)
    with torch.no_grad():
        values = leaf.radial(r.square().to(next(leaf.parameters()).device)).cpu()
    above = torch.nonzero(values > accuracy / 3.0)
    return float(r[min(int(above[-1]) + 1, len(r) - 1)]) if len(above) else float(r[0])


def _polynomial(coefficients: Sequence[Tensor], x: Tensor) -> Tensor:
    """Horner's rule, a fresh tensor."""
    *rest, second, first = coefficients
    result = (first * x).add_(second)
    for coefficient in reversed(rest):
        result = torch.addcmul(coefficient, result, x)
    return result
