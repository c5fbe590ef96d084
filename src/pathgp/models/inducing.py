"""Sparse Gaussian processes: a prior whose posterior goes through inducing points."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pathgp.compute.inputs import Array, read_dtype, read_matrix, read_vector, result_dtype, whole_number
from pathgp.compute.settings import Compute
from pathgp.data.rows import Rows, read_rows, standardise_rows
from pathgp.data.standardise import Standardisation, unscaled_columns
from pathgp.kernels import Kernel
from pathgp.kernels.parameters import short
from pathgp.learning.initialise import set_values
from pathgp.learning.model import Learnable, Mean
from pathgp.learning.policy import FitOptions
from pathgp.learning.sparse import Collapsed, Stochastic
from pathgp.models.gp import GP
from pathgp.pathwise import PriorPaths, ZeroPaths
from pathgp.posterior.conditioning import Settings, SolveRequest
from pathgp.posterior.inducing import InducingPosterior
from pathgp.solvers import CG, SGD, Auto, Cholesky
from pathgp.sparse.choose import CHOICES, choose_points
from pathgp.sparse.family import METHODS, Method
from pathgp.sparse.problem import Problem, required_bytes

# Mini-batches of a fit with svgp, and the learning rate of Adam, whose gradients are random.
SVGP_STEPS, SVGP_RATE = 1000, 0.03


class InducingGP(GP):
    """A sparse Gaussian process: m inducing points Z summarise n rows of data, in time O(n m^2).

    The verbs are those of `GP`. An approximation: the report of a posterior says of what. X may be a `numpy.memmap`,
    which is read block by block. All computations are in float64.

    Args:
        kernel: the covariance function; the model keeps a deep copy.
        noise: standard deviation of the noise.
        inducing: the number of inducing points, or the points themselves (m, d) in the units of X. At most n are
            chosen.
        method: "sgpr", "svgp" (mini-batches in `fit`), "dtc", "sor", "fitc", "pitc" or "sgd"; see
            `pathgp.sparse.family`.
        mean: as for `GP`.
        standardise: as for `GP`, without "common".
        choice: how points are chosen among the rows: "pivots" (by their variance given the others), "kmeans" (the
            seeding of k-means++) or "random"; see `pathgp.sparse.choose`.
        learn_inducing: whether `fit` moves the points, too. Later calls of `condition` then use the learned points, in
            the model's units. Not for kernels of names or counts, `Task` and `Tanimoto`.
    """

    has_common_scale = False

    def __init__(
        self,
        kernel: Kernel,
        noise: float = 0.1,
        inducing: int | Array = 1000,
        method: str = "sgpr",
        mean: Mean = 0.0,
        standardise: bool = False,
        choice: str = "pivots",
        learn_inducing: bool = False,
    ) -> None:
        self.refuse_trend(mean)
        super().__init__(kernel, noise, mean, standardise)
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
        if choice not in CHOICES:
            raise ValueError(f"choice must be one of {', '.join(map(repr, CHOICES))}, got {choice!r}")
        self.inducing: int | Tensor = _read_inducing(inducing)
        self.method, self.choice, self.learn_inducing = method, choice, bool(learn_inducing)
        # Z in the model's units, once there are data; a parameter if it is learned.
        self._set_points(torch.empty(0, 0, dtype=torch.float64))
        # How Z was chosen, for reports.
        self.origin = ""

    @property
    def family(self) -> Method:
        """The assumptions of the method."""
        return METHODS[self.method]

    @property
    def inducing_in_words(self) -> str:
        """The argument ``inducing``, for reprs."""
        return f"Z of {len(self.inducing)} points" if isinstance(self.inducing, Tensor) else str(self.inducing)

    @property
    def num_inducing(self) -> int:
        return len(self.points)

    def prepare_data(  # type: ignore[override]
        self, X: Array, y: Array, noise: Array | None = None, dtype: torch.dtype | str | None = None
    ) -> Rows:
        """Check data; rows are standardised and converted to float64 when they are read."""
        if read_dtype(dtype, "auto", None) is torch.float32:
            raise ValueError(f"inducing points are computed in float64, got dtype={dtype!r}: leave it out")
        inputs = read_rows(X)
        y = read_vector(y, len(inputs), "y", like=inputs)
        if not len(inputs):
            raise ValueError("X has no rows: at least one observation is needed")
        if isinstance(self.inducing, Tensor) and self.inducing.shape[1] != inputs.shape[1]:
            raise ValueError(f"inducing has {self.inducing.shape[1]} columns, X has {inputs.shape[1]}")
        kept, learned = unscaled_columns(self.kernel, inputs), isinstance(self.mean, nn.Module)
        if kept and self.learn_inducing:
            raise ValueError(
                f"column {kept[0]} of X holds names or counts, which cannot be learned: learn_inducing=False"
            )
        if not self.standardise:
            scaling = Standardisation.identity(inputs, result_dtype(inputs, y))
        else:
            centred = y if learned else y - self.mean_at(inputs).detach()
            scaling = standardise_rows(inputs, centred, kept)
            # A learned mean models the level of y: the units must not move with it.
            scaling = replace(scaling, target_shift=y.new_zeros(())) if learned else scaling
        return Rows.of(inputs, y, noise, scaling)

    def problem(self, data: Rows, compute: Compute) -> Problem:
        """The sparse method on data at the current hyperparameters, with their gradients."""
        self.deviation(data)  # the range of the noise
        noise, device = lambda: self.noise.to(data.device), data.device
        return Problem(self.family, self.kernel, self.points, data, noise, self.mean_at, compute.budget(device))

    def require_supported(self, data: Rows, settings: Settings, has_draws: bool) -> None:
        compute = settings.compute
        for name in ("backend", "group", "precision"):
            if getattr(compute, name) != getattr(Compute, name):
                raise ValueError(
                    f"inducing points are computed in blocks, by one process: leave Compute({name}=...) out"
                )
        if not isinstance(settings.solver, Auto | Cholesky | CG | SGD):
            raise ValueError(f"inducing points are solved by 'cholesky', 'cg' or 'sgd', got {settings.solver!r}")

    def draw_noise(self, data: Rows, samples: int, generator: torch.Generator) -> Tensor:
        """No draws: those of the inducing values are made when the posterior is known."""
        return data.y.new_empty(len(data.y), 0)

    def draw_prior(  # type: ignore[override]
        self, data: Rows, samples: int, features: int, generator: torch.Generator
    ) -> PriorPaths | ZeroPaths:
        if self.family.is_low_rank:
            return ZeroPaths(samples)
        return PriorPaths.draw(self.kernel, samples, features, data.columns, generator)

    def restore_prior(self, state: dict[str, Any]) -> PriorPaths | ZeroPaths:  # type: ignore[override]
        return ZeroPaths(state["zero"]) if "zero" in state else PriorPaths.from_state(self.kernel, state)

    def make_posterior(self, data: Any, prior: Any, draws: Tensor, request: SolveRequest) -> InducingPosterior:
        """The posterior of this model, which keeps references to the model and the draws: pass copies."""
        if request.goal is not None:
            raise ValueError("until='predictions' is for GP: a sparse method is solved directly, or to a residual")
        if not self.num_inducing:
            self._choose_points(data, self.kernel, request.generator, request.settings.compute)
        self.requires_grad_(False)
        posterior = self.solve(data, prior, draws, request)
        posterior.report.warn_unless_converged()
        return posterior

    def solve(  # type: ignore[override]
        self, data: Rows, prior: Any, draws: Tensor, request: SolveRequest
    ) -> InducingPosterior:
        solver = request.settings.solver
        by_descent = isinstance(solver, SGD) or (self.method == "sgd" and isinstance(solver, Auto))
        budget, needed = request.settings.compute.budget(data.device), required_bytes(self.num_inducing)
        is_iterative = by_descent or isinstance(solver, CG) or (needed > budget and not isinstance(solver, Cholesky))
        problem = "" if needed <= budget or is_iterative else "cholesky"
        if is_iterative and (self.family.correction != "none" or self.family.is_low_rank):
            problem = self.method
        if problem:
            raise ValueError(
                f"{problem} needs factors of {self.num_inducing:,} inducing points, {needed / 1e9:.2g} GB, and the "
                f"budget is {budget / 1e9:.2g} GB: use fewer points, solver='auto' with sgpr, or Compute(memory=...)"
            )
        if is_iterative:
            return InducingPosterior.solve_iteratively(self, data, prior, request, by_descent)
        return InducingPosterior.solve_directly(self, data, prior, request)

    def adapt_options(self, options: FitOptions) -> FitOptions:
        """The gradient is that of the method's own objective; svgp has random gradients, for Adam."""
        if options.estimator not in ("auto", "exact") or options.stages not in ("auto", "full"):
            raise ValueError("a sparse method has its own objective of all rows: leave estimator and stages out")
        if options.initialise in ("subsets", "best"):
            raise ValueError(f"initialise={options.initialise!r} is for GP: use 'data' or 'model'")
        if options.initialise == "auto":
            options = replace(options, initialise="model" if options.steps == 0 else "data")
        optimiser = options.optimiser
        if self.method == "svgp":
            if optimiser == "lbfgs":
                raise ValueError("svgp has random gradients, which lbfgs cannot use: use 'adam'")
            steps = SVGP_STEPS if options.steps is None else options.steps
            rate = options.learning_rate or SVGP_RATE
            options, optimiser = replace(options, steps=steps, learning_rate=rate), "adam"
        return replace(options, estimator="exact", stages="full", optimiser=optimiser)

    def fit_facts(self) -> dict[str, str]:
        """How the inducing points are chosen, and whether they are learned; a digest of given ones."""
        source = f"{self.inducing} by {self.choice}"
        if isinstance(self.inducing, Tensor):
            digest = hashlib.sha256(self.inducing.detach().cpu().contiguous().numpy().tobytes())
            source = f"{len(self.inducing)} given points {digest.hexdigest()[:16]}"
        return {"choice of inducing points": source + (", learned" if self.learn_inducing else "")}

    def begin_fit(self, data: Rows, options: FitOptions, generator: torch.Generator) -> Learnable:
        """A copy with inducing points, chosen under a kernel with the initial values of the fit."""
        model = self.working_copy(data.device)
        if not (self.num_inducing and options.initialise == "model"):
            start = copy.deepcopy(model)
            if options.initialise != "model":
                set_values(start, data, generator, has_sides=False)
            model._choose_points(data, start.kernel, generator, options.settings.compute)
        return model

    def own_estimator(self) -> Collapsed | Stochastic:
        return Stochastic() if self.method == "svgp" else Collapsed()

    def adopt(self, learned: dict[str, Tensor], posterior: Any) -> None:
        """Take over learned values; points that were chosen for these data stay with the posterior."""
        super().adopt(learned, posterior)
        if not self.learn_inducing:
            self._set_points(self.points[:0])

    def _choose_points(self, data: Rows, kernel: Kernel, generator: torch.Generator, compute: Compute) -> None:
        """Set Z: the given points in the model's units, or rows of the data."""
        if isinstance(self.inducing, Tensor):
            Z = data.scaling.inputs(self.inducing.to(data.device))
            self.origin = f"{len(Z):,} points, as given"
        else:
            budget = compute.budget(data.device)
            Z, self.origin = choose_points(kernel, data, self.inducing, self.choice, generator, budget)
        if self.learn_inducing:
            self.origin += ", learned"
        self._set_points(Z)

    def _set_points(self, Z: Tensor) -> None:
        for registry in (self._parameters, self._buffers):
            registry.pop("points", None)
        if self.learn_inducing:
            self.points: Tensor = nn.Parameter(Z.detach().clone())
        else:
            self.register_buffer("points", Z.detach().clone())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Points of any number replace those of the model."""
        points = state_dict.get(f"{prefix}points")
        if points is not None and points.shape != self.points.shape:
            self._set_points(points.to(self.noise.device))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def __repr__(self) -> str:
        options = f"inducing={self.inducing_in_words}, method={self.method!r}, {self._repr_details()}"
        return f"InducingGP({self.kernel!r}, noise={short(self.noise)}, {options})"


def _read_inducing(inducing: Any) -> int | Tensor:
    """Check a number of points, or points (m, d), copied to float64 on the CPU."""
    if getattr(inducing, "ndim", 0) or isinstance(inducing, list | tuple):
        Z = read_matrix(inducing, "inducing").X
        if not len(Z):
            raise ValueError("inducing has no rows: at least one point is needed")
        return Z.detach().to("cpu", torch.float64).clone()
    return whole_number(inducing, "inducing", 1)
