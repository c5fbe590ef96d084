"""Random conditioning problems with dense float64 reference solutions. The number of a case is its seed.

    case = draw_case(17, rows_max=3000)      # a `Table` or a `Grid`
    case.facts()                             # sizes, noise, kernel, solver, ... as plain values
    posterior = case.condition()             # the library's posterior, with default options except the solver
    truth = case.truth                       # mean and standard deviation at the points of the case

Inputs are in boxes, in clusters up to 1e9 length scales apart (1e5 in float32, where rounding would merge them), on a
line, with one distant row, or repeated at one place. The reference uses the same numbers as the library, in float64,
and evaluates every kernel from differences of inputs, never from norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pathgp
from pathgp import kernels

FORMS = ("matern-1/2", "matern-3/2", "matern-5/2", "squared-exponential", "rational-quadratic")
LAYOUTS = ("box", "clusters", "line", "far row", "repeated")
SOLVERS = {"auto": 0.5, "cg": 0.2, "ap": 0.15, "cholesky": 0.1, "sdd": 0.03, "sgd": 0.02}
POINTS = 30
# Orders of magnitude, in length scales, that inputs may lie away from zero and from each other.
_REACH = {torch.float64: 9.0, torch.float32: 5.0}


@dataclass(frozen=True)
class Part:
    """One stationary kernel, signal^2 times a correlation of the distance in some columns."""

    form: str
    columns: tuple[int, ...]
    lengthscale: Tensor
    signal: float
    alpha: float = 1.0

    def covariance(self, X: Tensor, Z: Tensor) -> Tensor:
        """(n, m) for X (n, d) and Z (m, d), float64, from the differences in each column."""
        squares = torch.zeros(len(X), len(Z), dtype=torch.float64, device=X.device)
        for column, length in zip(self.columns, self.lengthscale.tolist(), strict=True):
            squares += ((X[:, column, None] - Z[None, :, column]) / length).square_()
        return self.signal**2 * _correlation(self.form, squares, self.alpha)

    def kernel(self, scale: Tensor | None = None, target_scale: float = 1.0) -> kernels.Kernel:
        """The same kernel of the library, for inputs and targets in these units; ``scale``: (d,)."""
        length = self.lengthscale if scale is None else self.lengthscale / scale[list(self.columns)]
        name, _, nu = self.form.partition("-")
        inner: kernels.Kernel
        if name == "matern":
            inner = kernels.Matern(float(nu[0]) / 2, length, active_dims=self.columns)
        elif self.form == "squared-exponential":
            inner = kernels.SquaredExponential(length, active_dims=self.columns)
        else:
            inner = kernels.RationalQuadratic(self.alpha, length, active_dims=self.columns)
        return kernels.Scale(inner, self.signal / target_scale)


def _correlation(form: str, squares: Tensor, alpha: float) -> Tensor:
    if form == "squared-exponential":
        return torch.exp(-squares / 2)
    if form == "rational-quadratic":
        return (1 + squares / (2 * alpha)) ** (-alpha)
    r = squares.sqrt()
    if form == "matern-1/2":
        return torch.exp(-r)
    if form == "matern-3/2":
        a = math.sqrt(3.0) * r
        return (1 + a) * torch.exp(-a)
    a = math.sqrt(5.0) * r
    return (1 + a + a.square() / 3) * torch.exp(-a)


@dataclass(frozen=True)
class Truth:
    """The exact posterior: at the points of a case, and for the prior draws that a posterior was made from.

    factor: Cholesky factor of H (n, n).  cross: K(points, X) (m, n).  prior: prior variances (m,).  level: the prior
    mean.  deviation: standard deviations of the noise (n,).  mean, std: (m,).  rounding: what rounding in float64 may
    have done to ``mean``.
    """

    factor: Tensor
    cross: Tensor
    prior: Tensor
    level: float
    deviation: Tensor
    mean: Tensor
    std: Tensor
    rounding: float

    @classmethod
    def of(cls, K: Tensor, cross: Tensor, prior: Tensor, y: Tensor, level: float, deviation: Tensor) -> Truth:
        factor = torch.linalg.cholesky(K + torch.diag(deviation.square()))
        weights = torch.cholesky_solve((y - level).unsqueeze(1), factor)
        half = torch.linalg.solve_triangular(factor, cross.T, upper=False)
        std = (prior - half.square().sum(0)).clamp_min(0.0).sqrt()
        size = float((cross.abs() @ weights.abs()).max())
        rounding = 8.0 * math.sqrt(len(y)) * torch.finfo(torch.float64).eps * size
        return cls(factor, cross, prior, level, deviation, level + (cross @ weights)[:, 0], std, rounding)


@dataclass(frozen=True)
class Draws:
    """The prior draws behind the samples of a posterior, in the units of y, float64.

    data: f_j at the observations (n, s).  points: f_j at the first points of the case (some, s).
    noise: standard normal numbers (n, s).
    """

    data: Tensor
    points: Tensor
    noise: Tensor


@dataclass(frozen=True)
class Case:
    """What tables and grids share.

    noise: standard deviation of the noise in the model, in the units of y; ``known`` (n,) adds to it.
    level: "zero", "mean" (the model is told the level of y) or "standardise".
    """

    number: int
    rows_max: int
    solver: str
    dtype: torch.dtype
    noise: float
    known: Tensor | None
    level: str
    parts: tuple[Part, ...]
    layout: str
    offset: float
    y: Tensor = field(repr=False)
    shift: float = 0.0

    # The method of variances from samples, and how many neighbours it takes as a control.
    method, neighbours = "samples", 0

    @property
    def signal(self) -> float:
        """Prior standard deviation of f."""
        raise NotImplementedError(f"{type(self).__name__} does not define its signal")

    @property
    def model_level(self) -> float:
        """The prior mean that the model ends up with."""
        if self.level == "standardise":
            return float(self.y.to(torch.float64).mean())
        return self.shift if self.level == "mean" else 0.0

    @property
    def deviation(self) -> Tensor:
        known = torch.zeros(len(self.y), dtype=torch.float64) if self.known is None else self.known
        return (self.noise**2 + known.square()).sqrt()

    def facts(self) -> dict[str, Any]:
        return {
            "case": self.number,
            "rows_max": self.rows_max,
            "solver": self.solver,
            "dtype": str(self.dtype).removeprefix("torch."),
            "n": len(self.y),
            "noise/signal": self.noise / self.signal,
            "kernel": " + ".join(part.form for part in self.parts),
            "layout": self.layout,
            "offset": self.offset,
            "y scale": self.signal,
            "level": self.level,
        }


@dataclass(frozen=True)
class Table(Case):
    """Rows X (n, d) with targets y (n,), and points (m, d) to predict at, all as the library gets them."""

    X: Tensor = field(repr=False, default_factory=lambda: torch.empty(0, 1))
    points: Tensor = field(repr=False, default_factory=lambda: torch.empty(0, 1))

    method, neighbours = "neighbours", 32

    @property
    def signal(self) -> float:
        return math.sqrt(sum(part.signal**2 for part in self.parts))

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "kind": "table", "d": self.X.shape[1]}

    def condition(self) -> pathgp.Posterior:
        scale, target_scale = torch.ones(self.X.shape[1], dtype=torch.float64), 1.0
        if self.level == "standardise":
            scale = deviation_of(self.X)
            target_scale = float(deviation_of(self.y.unsqueeze(1))[0])
        terms = [part.kernel(scale, target_scale) for part in self.parts]
        gp = pathgp.GP(
            terms[0] if len(terms) == 1 else kernels.Sum(*terms),
            noise=self.noise / target_scale,
            mean=self.shift if self.level == "mean" else 0.0,
            standardise=self.level == "standardise",
        )
        generator = torch.Generator().manual_seed(self.number)
        return gp.condition(self.X, self.y, noise=self.known, solver=self.solver, generator=generator)

    def predict(self, posterior: pathgp.Posterior, method: str | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance at the points."""
        return posterior.mean(self.points), posterior.variance(self.points, method=method)

    @cached_property
    def truth(self) -> Truth:
        X, points = self.X.to(torch.float64), self.points.to(torch.float64)
        prior = torch.full((len(points),), self.signal**2, dtype=torch.float64)
        y = self.y.to(torch.float64)
        return Truth.of(self.covariance(X, X), self.covariance(points, X), prior, y, self.model_level, self.deviation)

    def covariance(self, X: Tensor, Z: Tensor) -> Tensor:
        return sum((part.covariance(X, Z) for part in self.parts), torch.zeros((), dtype=torch.float64))

    def draws(self, posterior: pathgp.Posterior) -> Draws:
        """From the features of the posterior's paths, evaluated in float64."""
        prior, scaling = posterior.prior, posterior.scaling
        assert prior is not None
        with torch.no_grad():
            data = prior(scaling.inputs(self.X.to(torch.float64))).T * scaling.target_scale
            points = prior(scaling.inputs(self.points.to(torch.float64))).T * scaling.target_scale
        return Draws(data, points, posterior.system.noise_draws.to(torch.float64))


@dataclass(frozen=True)
class Grid(Case):
    """A grid with holes: inputs of every side, and Y with NaN in the holes; ``y`` holds the observed values.

    One part of ``parts`` for every side. ``cells``: the numbers of the cells of the training grid at which to predict.
    ``new``: inputs of every side that are not in the grid; the grid they span is predicted too.
    """

    factors: tuple[Tensor, ...] = field(repr=False, default=())
    Y: Tensor = field(repr=False, default_factory=lambda: torch.empty(0))
    cells: Tensor = field(repr=False, default_factory=lambda: torch.empty(0))
    new: tuple[Tensor, ...] = field(repr=False, default=())

    @property
    def signal(self) -> float:
        return math.prod(part.signal for part in self.parts)

    def facts(self) -> dict[str, Any]:
        missing = 1.0 - len(self.y) / self.Y.numel()
        given = str(self.factors[0].dtype).removeprefix("torch.")
        return {**super().facts(), "kind": "grid", "sizes": list(self.Y.shape), "missing": missing, "inputs": given}

    def condition(self) -> Any:
        scales: list[Tensor | None] = [None] * len(self.factors)
        target_scale = 1.0
        if self.level == "standardise":
            scales = [deviation_of(F) for F in self.factors]
            target_scale = float(deviation_of(self.y.unsqueeze(1))[0])
        sides = [
            part.kernel(scale, target_scale if i == 0 else 1.0)
            for i, (part, scale) in enumerate(zip(self.parts, scales, strict=True))
        ]
        gp = pathgp.LatentKroneckerGP(
            sides,
            noise=self.noise / target_scale,
            mean=self.shift if self.level == "mean" else 0.0,
            standardise=self.level == "standardise",
        )
        generator = torch.Generator().manual_seed(self.number)
        return gp.condition(list(self.factors), self.Y, solver=self.solver, generator=generator)

    def predict(self, posterior: Any, method: str | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance at the chosen cells, then at the new inputs."""
        mean = [posterior.mean().flatten()[self.cells], posterior.mean(*self.new).flatten()]
        variance = [posterior.variance(*at, method=method).flatten() for at in ((), self.new)]
        return torch.cat(mean), torch.cat([variance[0][self.cells], variance[1]])

    @cached_property
    def truth(self) -> Truth:
        factors, new = [F.to(torch.float64) for F in self.factors], [G.to(torch.float64) for G in self.new]
        observed = (~torch.isnan(self.Y)).flatten().nonzero().flatten()
        fresh = torch.arange(math.prod(len(G) for G in new))
        K = self._covariance(factors, observed, factors, observed)
        cross = torch.cat(
            [
                self._covariance(factors, self.cells, factors, observed),
                self._covariance(new, fresh, factors, observed),
            ]
        )
        prior = torch.full((len(cross),), self.signal**2, dtype=torch.float64)
        return Truth.of(K, cross, prior, self.y.to(torch.float64), self.model_level, self.deviation)

    def _covariance(self, left: Sequence[Tensor], I: Tensor, right: Sequence[Tensor], J: Tensor) -> Tensor:
        """Between the cells I of one grid and J of another, counted row by row."""
        total = torch.ones(len(I), len(J), dtype=torch.float64)
        rows = np.unravel_index(I.numpy(), [len(F) for F in left])
        columns = np.unravel_index(J.numpy(), [len(F) for F in right])
        for part, F, G, i, j in zip(self.parts, left, right, rows, columns, strict=True):
            total *= part.covariance(F, G)[torch.from_numpy(i)][:, torch.from_numpy(j)]
        return total

    def draws(self, posterior: Any) -> Draws:
        """(L_1 x ... x L_k) w with Cholesky factors L_i of the sides in float64, at the cells of the training grid."""
        values = posterior.prior.w.to(torch.float64)
        for i, (part, F) in enumerate(zip(self.parts, self.factors, strict=True)):
            X = F.to(torch.float64)
            root = _root(part.covariance(X, X))
            values = torch.tensordot(root, values, dims=([1], [i])).movedim(0, i)
        flat = values.reshape(-1, values.shape[-1])
        observed = (~torch.isnan(self.Y)).flatten()
        return Draws(flat[observed], flat[self.cells], posterior.system.noise_draws.to(torch.float64))


def _root(K: Tensor) -> Tensor:
    """Cholesky factor, with as little jitter as it takes: 1e-15 of the variance, or ten times as much, ..."""
    factor, failed = torch.linalg.cholesky_ex(K)
    jitter = 1e-15 * float(K.diagonal().max())
    while int(failed):
        factor, failed = torch.linalg.cholesky_ex(K + jitter * torch.eye(len(K), dtype=K.dtype))
        jitter *= 10.0
    return factor


def deviation_of(values: Tensor) -> Tensor:
    """Standard deviations of the columns as ``standardise=True`` takes them: one for a column that is constant."""
    values = values.to(torch.float64)
    deviation = values.std(0, correction=0)
    constant = deviation <= 1e-12 * values.abs().amax(0).clamp_min(1e-300)
    return torch.where(constant, torch.ones_like(deviation), deviation)


def draw_case(number: int, rows_max: int = 3000) -> Case:
    """The case of this number, of at most ``rows_max`` rows: the same on every machine."""
    rng = np.random.default_rng(number)
    n = round(rows_max ** rng.random())
    solver = str(rng.choice(list(SOLVERS), p=list(SOLVERS.values())))
    dtype = torch.float32 if rng.random() < 0.5 else torch.float64
    slow = solver in ("sdd", "sgd")
    if slow:
        # Descent is for well-conditioned systems; elsewhere it takes its thousand epochs and says so.
        n = min(n, 300)
    common = {
        "number": number,
        "rows_max": rows_max,
        "solver": solver,
        "dtype": dtype,
        "level": str(rng.choice(["zero", "mean", "standardise"], p=[0.5, 0.2, 0.3])),
    }
    ratio = 10.0 ** rng.uniform(-0.5 if slow else -6.0, 1.0)
    signal = 10.0 ** rng.uniform(-6.0, 6.0)
    draw = _draw_grid if rng.random() < 0.3 else _draw_table
    return draw(rng, n, ratio, signal, slow, common)


def _draw_table(
    rng: np.random.Generator, n: int, ratio: float, signal: float, slow: bool, common: dict[str, Any]
) -> Table:
    dtype, d = common["dtype"], int(rng.integers(1, 6 if slow or rng.random() < 0.6 else 31))
    layout = "box" if slow else str(rng.choice(LAYOUTS, p=[0.3, 0.3, 0.15, 0.1, 0.15]))
    reach = 0.0 if slow else _REACH[dtype]
    X = _layout(rng, layout, n, d, reach)
    offset = 10.0 ** rng.uniform(0.0, reach) if rng.random() < 0.5 and reach else 0.0
    points = _points(rng, X)
    unit = 10.0 ** rng.uniform(-3.0, 3.0)
    # With length scales that grow as sqrt(d) distances stay the same in every dimension.
    length = unit * np.exp(rng.normal(0.0, 0.3, d))
    X, points = ((values + math.sqrt(d) * offset) * length for values in (X, points))
    parts = _parts(rng, d, math.sqrt(d) * torch.tensor(length), signal)
    given, asked = torch.tensor(X).to(dtype), torch.tensor(points).to(dtype)
    known = torch.tensor(ratio * signal * rng.uniform(0.3, 3.0, n)) if rng.random() < 0.15 else None
    case = Table(
        **common,
        noise=ratio * signal,
        known=known,
        parts=parts,
        layout=layout,
        offset=offset,
        y=torch.zeros(n, dtype=torch.float64),
        X=given,
        points=asked,
    )
    exact = given.to(torch.float64)
    y, shift = _targets(rng, case, case.covariance(exact, exact))
    rounded = y if rng.random() < 0.5 else y.to(dtype)
    return Table(**{**vars_of(case), "y": rounded, "shift": shift})


def _draw_grid(
    rng: np.random.Generator, n: int, ratio: float, signal: float, slow: bool, common: dict[str, Any]
) -> Grid:
    dtype, sides = common["dtype"], int(rng.choice([1, 2, 3], p=[0.1, 0.65, 0.25]))
    # Primal SGD needs random features, which grids have none of.
    common = {**common, "solver": common["solver"].replace("sgd", "sdd")}
    share = rng.uniform(0.3, 1.0)
    logs = rng.dirichlet([4.0] * sides) * math.log(max(n / share, 2.0))
    sizes = [max(1, round(math.exp(value))) for value in logs]
    precise = dtype == torch.float64 or rng.random() < 0.5
    # Coordinates in float64 beside values in float32: the library has to see to it that they stay apart.
    kind = torch.float64 if precise else dtype
    reach = 0.0 if slow else _REACH[kind]
    offset = 10.0 ** rng.uniform(0.0, reach) if rng.random() < 0.5 and reach else 0.0
    factors, new, parts = [], [], []
    for i, p in enumerate(sizes):
        unit, spacing = 10.0 ** rng.uniform(-3.0, 3.0), 10.0 ** rng.uniform(-1.5, 0.5)
        steps = np.arange(p) + 0.2 * rng.random(p)
        fresh = np.concatenate([rng.uniform(0.0, p, 1), p + rng.uniform(1.0, 5.0, 1)])
        factors.append(torch.tensor((steps * spacing + offset) * unit).to(kind).unsqueeze(1))
        new.append(torch.tensor((fresh * spacing + offset) * unit).to(kind).unsqueeze(1))
        form, alpha = str(rng.choice(FORMS)), float(10.0 ** rng.uniform(-0.5, 1.0))
        length = torch.tensor([unit], dtype=torch.float64)
        parts.append(Part(form, (0,), length, signal if i == 0 else 1.0, alpha))
    observed = _observed(rng, sizes, share)
    number = int(observed.sum())
    cells = torch.from_numpy(rng.permutation(math.prod(sizes))[:POINTS])
    case = Grid(
        **common,
        noise=ratio * signal,
        known=None,
        parts=tuple(parts),
        layout="grid",
        offset=offset,
        y=torch.zeros(number, dtype=torch.float64),
        factors=tuple(factors),
        Y=torch.zeros(sizes, dtype=dtype),
        cells=cells,
        new=tuple(new),
    )
    where, exact = observed.flatten().nonzero().flatten(), [F.to(torch.float64) for F in factors]
    y, shift = _targets(rng, case, case._covariance(exact, where, exact, where))
    Y = torch.full(sizes, math.nan, dtype=dtype)
    Y[observed] = y.to(dtype)
    return Grid(**{**vars_of(case), "y": Y[observed], "Y": Y, "shift": shift})


def vars_of(case: Case) -> dict[str, Any]:
    """The fields of a case."""
    return {name: getattr(case, name) for name in case.__dataclass_fields__}


def _layout(rng: np.random.Generator, layout: str, n: int, d: int, reach: float) -> np.ndarray:
    """Inputs (n, d) in length scales, each column in those of one dimension."""
    edge = 10.0 ** rng.uniform(-0.5, 1.3)
    X = edge * rng.random((n, d))
    if layout == "clusters":
        centres = 10.0 ** rng.uniform(1.0, max(reach, 1.0)) * rng.uniform(-1.0, 1.0, (1 + rng.poisson(3.0), d))
        X += centres[rng.integers(len(centres), size=n)]
    elif layout == "line":
        X = np.sort(edge * n**0.5 * rng.random(n))[:, None] * rng.normal(size=d)
    elif layout == "far row":
        X[rng.integers(n)] += 10.0 ** rng.uniform(1.0, max(reach, 1.0))
    elif layout == "repeated":
        X = X[rng.integers(max(1, n // 3), size=n)]
    return X


def _points(rng: np.random.Generator, X: np.ndarray) -> np.ndarray:
    """Points (m, d) in the same units: rows of X, close to them, between two of them, and one far away from all."""
    rows = rng.integers(len(X), size=POINTS)
    points = X[rows].copy()
    third = POINTS // 3
    points[third : 2 * third] += 0.2 * rng.normal(size=points[third : 2 * third].shape)
    other = X[rng.integers(len(X), size=POINTS - 2 * third)]
    points[2 * third :] += rng.random((len(other), 1)) * (other - points[2 * third :])
    points[-1] = X.max(0) + 100.0 * (1.0 + np.ptp(X, axis=0))
    return points


def _parts(rng: np.random.Generator, d: int, length: Tensor, signal: float) -> tuple[Part, ...]:
    forms = [str(rng.choice(FORMS)) for _ in range(2 if rng.random() < 0.25 else 1)]
    alpha = float(10.0 ** rng.uniform(-0.5, 1.0))
    everything = tuple(range(d))
    if len(forms) == 1:
        return (Part(forms[0], everything, length, signal, alpha),)
    share = rng.uniform(0.2, 0.8)
    some = tuple(sorted(rng.permutation(d)[: int(rng.integers(1, d + 1))].tolist()))
    return (
        Part(forms[0], everything, length, signal * math.sqrt(share), alpha),
        Part(forms[1], some, 0.3 * length[list(some)], signal * math.sqrt(1.0 - share), alpha),
    )


def _targets(rng: np.random.Generator, case: Case, K: Tensor) -> tuple[Tensor, float]:
    """Values (n,) drawn from the model, or a wave along the rows with the noise of the model; and their level."""
    n, signal = len(K), case.signal
    noise = case.deviation * torch.from_numpy(rng.normal(size=n))
    z = torch.from_numpy(rng.normal(size=n))
    if rng.random() < 0.5:
        f = _root(K) @ z
    else:
        near = K[int(rng.integers(n))] / signal**2
        f = signal * (torch.sin(3.0 * near) + near)
    orders = {"zero": 1.0, "mean": 6.0, "standardise": 6.0}[case.level]
    shift = signal * 10.0 ** rng.uniform(0.0, orders) if rng.random() < 0.6 else 0.0
    return shift + f + noise, shift


def _observed(rng: np.random.Generator, sizes: Sequence[int], share: float) -> Tensor:
    """Which cells are observed, one at least: scattered holes, or a rectangle of them beside scattered ones."""
    observed = rng.random(sizes) < share
    if rng.random() < 0.4:
        low = [int(rng.integers(p)) for p in sizes]
        observed[tuple(slice(a, a + max(1, p // 2)) for a, p in zip(low, sizes, strict=True))] = False
    if not observed.any():
        observed.flat[int(rng.integers(observed.size))] = True
    return torch.from_numpy(observed)
