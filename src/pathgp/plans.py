"""Predicted costs of a posterior: for rows, and for a grid with holes, with and without its structure.

For grids see section 6.2.6 of the thesis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch

from pathgp.compute.hardware import H200, Rates, rates
from pathgp.compute.inputs import read_dtype, whole_number
from pathgp.compute.memory import given_bytes, memory_budget
from pathgp.data.grid import break_even
from pathgp.kernels import Matern
from pathgp.learning.policy import VECCHIA_COLUMNS, FitOptions, Stage, make_stages
from pathgp.learning.timing import (
    MEASURE_FROM,
    ImaginedOperator,
    describe_seconds,
    estimate_costs,
    measured_rates,
    predict_field_solve,
)
from pathgp.operators import Operator
from pathgp.operators.structure_choice import predict_structured
from pathgp.posterior.conditioning import Settings
from pathgp.solvers import predict

# Epochs of SDD to a residual of 0.01, as measured on regression data with learned hyperparameters: 100 to 300.
_EPOCHS_SDD = 200.0
# Rows of a step of SDD on a GPU, its least seconds, and its passes over vectors: in all 0.21 ms on an H200 with batches
# of 512 and 13,500 rows, 0.32 ms with 50,000, 0.8 ms with 200,000.
_BATCH, _STEP, _PASSES = 512, 2e-4, 16
# Operations of a kernel beside its distances: a square root, an exponential and a polynomial.
_OPERATIONS = 12
# Half of the memory of an H200, the default of `memory_budget`.
_H200_MEMORY = 70e9
# Numbers per row and column while a solver works: right-hand sides, iterates, directions, residuals.
_VECTORS = 8
# A typical field: length scale in units of the extent, and the number of points that is looked at.
_FIELD_SCALE, _FIELD_POINTS = 0.2, 50_000
_FIELD_NOTE = "the fit of a stationary kernel to points of a map; other kernels take longer"


@dataclass(frozen=True)
class Cost:
    """One product K V under one backend, on each of the members.

    entries: of K that are evaluated.  flops: operations.  moved: bytes between the memory and the chip.
    kept: bytes of K that stay in memory.  seconds: predicted.  fits: whether K fits into the budget.
    """

    entries: float
    flops: float
    moved: float
    kept: float
    seconds: float
    fits: bool


@dataclass(frozen=True)
class FitPlan:
    """The stages of a fit with the largest number of steps in each, and the predicted seconds of the whole fit.

    estimator: of the gradients, as in `GP.fit`.
    """

    stages: tuple[Stage, ...]
    rows: int
    seconds: float
    estimator: str

    def __str__(self) -> str:
        lines = [f"{'a fit':<12}{'steps':>10}{'rows':>12}"]
        later = self.estimator if self.estimator in ("exact", "vecchia") else "estimated"
        for stage in self.stages:
            lines.append(f"{'exact' if stage.exact else later:<12}{stage.steps:>10}{stage.rows:>12,}")
        lines.append(f"{'last solve':<12}{'':>10}{self.rows:>12,}")
        return "\n".join([*lines, f"in all about {describe_seconds(self.seconds)}"])


@dataclass(frozen=True)
class Plan:
    """The result of `plan`; prints as a table.

    backends: the cost of a product with 1 + samples columns, by backend.  choice: the backend that "auto" uses.
    solvers: epochs and seconds of the mean and all samples to a residual of 0.01, by solver; without those that do not
    fit; "CG, field" is with field products.  memory: the budget of each member in bytes.  vectors: bytes of the
    iterates.  fit: what `GP.fit` does by default.
    """

    rows: int
    columns: int
    samples: int
    device: str
    members: int
    precision: str
    memory: float
    vectors: float
    backends: dict[str, Cost]
    choice: str
    solvers: dict[str, tuple[float, float]]
    fit: FitPlan

    def __repr__(self) -> str:
        among = f", shared out among {self.members}" if self.members > 1 else ""
        sizes = f"{self.rows:,} rows, {self.columns} columns, {self.samples} samples"
        lines = [
            f"{sizes}; {self.precision}, {self.device}{among}",
            f"vectors take {_bytes(self.vectors)}; {_bytes(self.memory)} available for K",
            "",
            f"{'one product':<12}{'entries':>10}{'operations':>12}{'moved':>10}{'kept':>10}{'seconds':>10}",
        ]
        for name, cost in self.backends.items():
            mark = "  <- auto" if name == self.choice else "" if cost.fits else "  too large"
            numbers = f"{cost.entries:>10.2g}{cost.flops:>12.2g}{_bytes(cost.moved):>10}{_bytes(cost.kept):>10}"
            lines.append(f"{name:<12}{numbers}{_number(cost.seconds):>10}{mark}")
        lines += ["", f"{'a posterior':<12}{'epochs':>10}{'seconds':>12}"]
        for name, (epochs, seconds) in self.solvers.items():
            lines.append(f"{name:<12}{epochs:>10.0f}{_number(seconds):>12}")
        note = [_FIELD_NOTE] if self.fit.estimator == "vecchia" else []
        return "\n".join([*lines, "", str(self.fit), *note])


def plan(
    n: int,
    d: int,
    samples: int = 64,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
    memory: float | None = None,
    members: int = 1,
    measure: bool = False,
) -> Plan:
    """Predict what products and a posterior cost for n rows of d columns; seconds are right to about a factor of two.

    Seconds come from tables of rates. Epochs come from regression data with learned hyperparameters; other data may
    need between a third and three times as many. In up to three columns the fit is that of a stationary kernel, by
    Vecchia's likelihood, and on this machine its last solve may use field products, those of uniform points.

    Args:
        n: rows of the data.
        d: columns of the inputs.
        samples: paths of the posterior.
        device: "cpu", a CUDA device of this machine, or "h200" from anywhere.
        dtype: of the inputs, torch.float32 or torch.float64, or its name.
        memory: budget in bytes for K on each member; by default half of the free memory.
        members: processes or devices that share the work.
        measure: use the rates of this machine, measured within a second and remembered by the process. The
            prediction of a fit always uses them if it takes more than a few seconds, as the fit itself does.
    """
    n, d, samples = whole_number(n, "n", 1), whole_number(d, "d", 1), whole_number(samples, "samples", 0)
    members, is_remote = whole_number(members, "members", 1), str(device).lower() == "h200"
    if measure and is_remote:
        raise ValueError("measure=True takes the rates of this machine: give a device of it, or leave out measure")
    inputs_dtype: torch.dtype = read_dtype(dtype)
    place, budget = torch.device("cuda") if is_remote else _local_device(device), given_bytes(memory)
    budget = int(_H200_MEMORY) if is_remote and budget is None else memory_budget(budget, place)
    r = H200 if is_remote else measured_rates(place, inputs_dtype) if measure else rates(place, inputs_dtype)
    H = ImaginedOperator((n, n), inputs_dtype, place, "auto", budget, n**2, members)
    chosen = H.restrict(n, r)
    backends = _product_costs(H, d, 1 + samples, r)
    solvers = _solver_costs(chosen, 1 + samples, r, backends[chosen.backend].seconds)
    vectors = float(_VECTORS * inputs_dtype.itemsize * n * (1 + samples))
    where, precision = "NVIDIA H200" if is_remote else str(place), str(inputs_dtype).removeprefix("torch.")
    is_field = d <= VECCHIA_COLUMNS
    if is_field and members == 1 and not is_remote:
        field = replace(H, structured=_predict_field(n, d, H))
        if (cost := _field_cost(field.restrict(n, r), 1 + samples, r)) is not None:
            H, solvers = field, {"CG, field": cost, **solvers}
    options = FitOptions(Settings.read("auto", 1e-2, None), samples=max(samples, 1))
    options = options.resolve(n, is_grid=False, is_field=is_field)
    # A length scale per column, signal and noise are learned.
    stages, costs = make_stages(n, options), estimate_costs(d, d + 2, options, H, r)
    # As `GP.fit` does.
    if not is_remote and costs.predict(stages, n) > MEASURE_FROM:
        costs = replace(costs, rates=measured_rates(place, inputs_dtype))
    fit = FitPlan(stages, n, costs.predict(stages, n), options.estimator)
    return Plan(n, d, samples, where, members, precision, budget, vectors, backends, chosen.backend, solvers, fit)


def _predict_field(n: int, d: int, H: ImaginedOperator) -> tuple[float, str] | None:
    """Seconds per column of the field product of n uniform points, and its name; None if it is not faster."""
    points = min(n, _FIELD_POINTS)
    X = torch.rand(points, d, generator=torch.Generator().manual_seed(0), dtype=H.dtype).to(H.device)
    found = predict_structured(Matern(1.5, _FIELD_SCALE).to(H.device), X, "auto", int(H.memory))
    return None if found is None else (found[0] * n / points, found[1])


def _field_cost(imagined: ImaginedOperator, s: int, r: Rates) -> tuple[float, float] | None:
    """Epochs and seconds of CG with field products and Vecchia's preconditioner; None if they are not possible."""
    if imagined.backend != "field":
        return None
    H, epochs = cast(Operator, imagined), predict.EPOCHS_LEAST + predict.EPOCHS_AP
    seconds = predict_field_solve(H, s, epochs, r)
    return None if seconds is None else (epochs, seconds)


def _product_costs(H: ImaginedOperator, d: int, s: int, r: Rates) -> dict[str, Cost]:
    """The cost of K V, with s columns, by backend; the last is the default if K does not fit into memory."""
    n, size, share = H.shape[0], H.dtype.itemsize, H.entries / H.world_size
    vectors = size * n * (d + 2.0 * s)
    # Tiles of the streamed backend pass through the memory of a GPU: written, changed in place and read.
    tiles = 3 * size * share if H.device.type == "cuda" else 0.0
    # By backend: entries evaluated, bytes moved, bytes kept.
    ways = {"dense": (0.0, size * share, float(size * n * -(-n // H.world_size)))}
    ways["streamed"] = (share / 2, vectors + tiles, 0.0)
    if r.fused and H.dtype == torch.float32:
        ways["fused"] = (share, vectors, 0.0)
    costs = {}
    for name, (entries, moved, kept) in ways.items():
        flops = entries * (3 * d + _OPERATIONS) + 2 * share * s
        seconds = predict.predict_product(cast(Operator, replace(H, backend=name)), s, r)
        costs[name] = Cost(entries, flops, moved, kept, seconds, kept <= H.memory)
    return costs


def _solver_costs(imagined: ImaginedOperator, s: int, r: Rates, seconds: float) -> dict[str, tuple[float, float]]:
    """Epochs and seconds by solver, for s right-hand sides; ``seconds``: of one product."""
    n, H = imagined.shape[0], cast(Operator, imagined)
    epochs_ap, epochs_cg = predict.EPOCHS_LEAST + predict.EPOCHS_AP, predict.EPOCHS_LEAST + predict.EPOCHS_CG
    epoch_sdd = seconds + (n**2 / 2 / H.world_size / r.evaluate if H.backend == "streamed" else 0.0)
    if H.device.type == "cuda":
        epoch_sdd += max(1.0, n / _BATCH) * (_STEP + _PASSES * H.dtype.itemsize * n * s / r.read)
    costs = {
        "AP": (epochs_ap, predict.predict_ap(H, s, epochs_ap, r)),
        "CG": (epochs_cg, predict.predict_cg(H, s, epochs_cg, r)),
        "SDD": (_EPOCHS_SDD, _EPOCHS_SDD * epoch_sdd),
    }
    if 16.0 * n**2 <= H.memory:
        costs["Cholesky"] = (1.0 + n / (6.0 * s), predict.predict_cholesky(H, s, r))
    return costs


def _local_device(device: str | torch.device) -> torch.device:
    """A device of this machine."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu', a CUDA device or 'h200', got {device!r}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {place} is not available here: 'h200' plans for one from anywhere")
    return place


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _bytes(number: float) -> str:
    units = ["B", "kB", "MB", "GB", "TB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"


@dataclass(frozen=True)
class GridPlan:
    """Costs of one product of H with ``columns`` columns, dense and through the factors; prints as a small table.

    flops: operations.  bytes: of the matrices that are kept.  seconds: predicted, right to about a factor of two.
    """

    sizes: tuple[int, ...]
    observed: int
    columns: int
    flops: dict[str, float]
    bytes: dict[str, float]
    seconds: dict[str, float]

    @property
    def missing(self) -> float:
        """The share of cells without an observation."""
        return 1.0 - self.observed / math.prod(self.sizes)

    @property
    def choice(self) -> str:
        """The method that `LatentKroneckerGP` uses: the one with fewer operations."""
        return "dense" if self.flops["dense"] < self.flops["kronecker"] else "kronecker"

    def __repr__(self) -> str:
        limit = break_even(*self.sizes)
        grid = " x ".join(map(str, self.sizes))
        lines = [
            f"{self.observed} of {grid} cells observed, {100 * self.missing:.1f} % missing",
            f"break-even at {100 * limit.time:.1f} % (time) and {100 * limit.memory:.1f} % (memory)",
            f"{'':<10}  {'operations':>12}  {'memory':>10}  {'seconds':>9}   a product with {self.columns} columns",
        ]
        for way in self.flops:
            mark = "  <- chosen" if way == self.choice else ""
            memory = f"{self.bytes[way] / 1e9:.3g} GB"
            lines.append(f"{way:<10}  {self.flops[way]:>12.3g}  {memory:>10}  {self.seconds[way]:>9.2g}{mark}")
        return "\n".join(lines)


def plan_grid(
    *sizes: int,
    observed: int | None = None,
    columns: int = 65,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> GridPlan:
    """Predict what products cost on a grid with these sides, with a value in ``observed`` cells (by default all)."""
    if not sizes:
        raise ValueError("plan_grid needs the sizes of the sides, for instance plan_grid(2000, 52)")
    sizes = tuple(whole_number(p, "a side of the grid", 1) for p in sizes)
    cells, columns = math.prod(sizes), whole_number(columns, "columns", 1)
    n = cells if observed is None else whole_number(observed, "observed", 1)
    if n > cells:
        raise ValueError(f"{n} observed cells of {cells}")
    inputs_dtype: torch.dtype = read_dtype(dtype)
    size, rate = inputs_dtype.itemsize, rates(torch.device(device), inputs_dtype)
    flops = {"dense": 2.0 * n**2 * columns, "kronecker": 2.0 * cells * sum(sizes) * columns}
    kept = {"dense": float(size * n**2), "kronecker": float(size * sum(p**2 for p in sizes))}
    grids = 4.0 * size * cells * columns
    seconds = {
        "dense": max(flops["dense"] / rate.multiply, kept["dense"] / rate.read),
        "kronecker": flops["kronecker"] / rate.multiply + grids / rate.read,
    }
    return GridPlan(sizes, n, columns, flops, kept, seconds)
