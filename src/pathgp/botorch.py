"""Door to BoTorch: posteriors as models, and an iterative solver for BoTorch's own paths.

    from pathgp.botorch import PathwiseModel, iterative_update

    model = PathwiseModel(gp.posterior)      # for qLogEI, qUCB, PathwiseThompsonSampling, optimize_acqf, ...
    draw_matheron_paths(their_model, Size([64]), update_strategy=iterative_update())    # the solver alone

The samples of an acquisition function are the posterior's paths: functions that do not change between evaluations, so
that acquisition functions are deterministic. All other draws come from the generator of the model, never from torch's
global one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor

from pathgp.compute.random import as_generator, normal, permutation
from pathgp.operators import KernelOperator
from pathgp.posterior.table import Posterior
from pathgp.solvers.auto import as_solver
from pathgp.solvers.base import Solver

try:
    from botorch.acquisition.objective import ScalarizedPosteriorTransform
    from botorch.models.model import Model
    from botorch.posteriors.ensemble import EnsemblePosterior
    from botorch.sampling.base import MCSampler
    from botorch.sampling.get_sampler import GetSampler
    from botorch.sampling.pathwise.features import KernelEvaluationMap
    from botorch.sampling.pathwise.paths import GeneralizedLinearPath, SamplePath
    from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
    from botorch.sampling.pathwise.utils import get_input_transform, get_train_inputs, get_train_targets
except ImportError as error:
    raise ImportError("pathgp.botorch needs BoTorch: pip install 'pathgp[botorch]'") from error

from pathgp.gpytorch import from_gpytorch, read_noise


class PathPosterior(EnsemblePosterior):
    """The paths of a posterior at inputs; mean and variance are those of the posterior, not of its paths.

    After a ``posterior_transform`` this holds for a `ScalarizedPosteriorTransform` of one output. For any other
    transform mean and variance are those of the transformed paths: estimates.

    values: (b) x s x q x m.  mean, variance: functions that return them, (b) x q x m, when they are needed.
    generator: source of the draws of `rsample`.
    """

    def __init__(
        self,
        values: Tensor,
        mean: Callable[[], Tensor],
        variance: Callable[[], Tensor],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(values)
        self._mean, self._variance, self._generator = mean, variance, as_generator(generator)

    @property
    def mean(self) -> Tensor:
        return self._mean()

    @property
    def variance(self) -> Tensor:
        return self._variance()

    @property
    def base_sample_shape(self) -> Size:
        """Raise NotImplementedError: samplers that draw base samples ask for it."""
        raise NotImplementedError(
            "samples of this posterior are its paths, without base samples: leave out sampler=, or use "
            "pathgp.botorch.PathSampler(Size([64]))"
        )

    def rsample(self, sample_shape: Size | None = None) -> Tensor:
        """Draw paths at random, the same ones for all inputs."""
        shape, source = sample_shape or Size([1]), self._generator
        index = torch.randint(self.ensemble_size, shape, generator=source, device=source.device)
        return self.at(index.to(self.device))

    def at(self, index: Tensor) -> Tensor:
        """The values of the paths with these numbers: index.shape x (b) x q x m."""
        return self.values.movedim(-3, 0)[index]


class PathSampler(MCSampler):
    """The first paths of a `PathPosterior`, up to all of them: the same samples at every call."""

    def forward(self, posterior: Any) -> Tensor:
        index = torch.arange(self.sample_shape.numel(), device=posterior.device) % posterior.ensemble_size
        return posterior.at(index.view(self.sample_shape))

    def _update_base_samples(self, posterior: Any, base_sampler: MCSampler) -> None:
        """Do nothing: paths have no base samples."""


@GetSampler.register(PathPosterior)
def _path_sampler(posterior: PathPosterior, sample_shape: Size, *, seed: int | None = None) -> PathSampler:
    # More samples than paths would repeat paths.
    return PathSampler(sample_shape=Size([min(sample_shape.numel(), posterior.ensemble_size)]), seed=seed)


class PathwiseModel(Model):
    """A BoTorch model whose posterior samples are the paths of one or several posteriors, one per output.

    Args:
        posteriors: a `Posterior` with paths, or a list of them with equally many.
        generator: source of all draws (choice of paths, noise, updates); None draws a fresh seed. torch's global
            generator is never used.
    """

    def __init__(self, posteriors: Posterior | Sequence[Posterior], generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = as_generator(generator)
        self.posteriors = list(posteriors) if isinstance(posteriors, Sequence) else [posteriors]
        if not self.posteriors or not all(isinstance(posterior, Posterior) for posterior in self.posteriors):
            kinds = ", ".join(type(posterior).__name__ for posterior in self.posteriors) or "an empty list"
            raise TypeError(
                f"PathwiseModel takes a Posterior, such as gp.posterior after gp.fit, or a list of them, got {kinds}"
            )
        counts = {posterior.num_samples for posterior in self.posteriors}
        if counts == {0}:
            raise ValueError("the posterior has no paths: condition it with samples=64, say")
        if len(counts) > 1:
            raise ValueError(f"the posteriors have {sorted(counts)} paths: give them equally many")

    @property
    def num_outputs(self) -> int:
        return len(self.posteriors)

    @property
    def batch_shape(self) -> Size:
        return Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> PathPosterior:
        """All paths at X, b x q x d; differentiable in X. ``observation_noise=True`` adds fresh noise to them."""
        if isinstance(observation_noise, Tensor):
            raise NotImplementedError("observation_noise must be True or False: the model knows its noise")
        if output_indices is not None and not len(output_indices):
            raise ValueError("output_indices is empty: name at least one output, or leave it out for all")
        chosen = self.posteriors if output_indices is None else [self.posteriors[i] for i in output_indices]
        rows, shape = X.reshape(-1, X.shape[-1]), (*X.shape[:-1], len(chosen))
        paths = torch.stack([posterior.paths(rows) for posterior in chosen], -1)
        values = paths.view(-1, *shape).movedim(0, -3)
        if observation_noise:
            deviations = torch.tensor([posterior.noise_std for posterior in chosen], dtype=torch.float64)
            noise = normal(tuple(values.shape), self.generator, values.dtype, values.device)
            values = values + deviations.to(values) * noise
        noise_too = bool(observation_noise)

        def mean() -> Tensor:
            return torch.stack([p.mean(rows) for p in chosen], -1).view(shape)

        def variance() -> Tensor:
            return torch.stack([p.variance(rows, noise_too, "smooth") for p in chosen], -1).view(shape)

        if posterior_transform is None:
            return PathPosterior(values, mean, variance, self.generator)
        new = posterior_transform.evaluate(values)
        new = new.unsqueeze(-1) if new.ndim < values.ndim else new
        if type(posterior_transform) is ScalarizedPosteriorTransform and len(chosen) == 1:
            transform: Any = posterior_transform

            def transformed_mean() -> Tensor:
                return torch.as_tensor(transform.offset + transform.weights * mean())

            def transformed_variance() -> Tensor:
                return torch.as_tensor(transform.weights.square() * variance())

            return PathPosterior(new, transformed_mean, transformed_variance, self.generator)
        return PathPosterior(new, lambda: new.mean(-3), lambda: new.var(-3), self.generator)

    def subset_output(self, idcs: list[int]) -> PathwiseModel:
        """The model of the outputs with these numbers."""
        return PathwiseModel([self.posteriors[i] for i in idcs], self.generator)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> PathwiseModel:
        """Add observations Y (n, m) at X (n, d): a warm-started solve with the same prior paths.

        ``noise``: known variances of Y (n, m), as in BoTorch; the learned noise is added to them, as in `GP.condition`.
        """
        if kwargs:
            raise TypeError(f"condition_on_observations takes X, Y and noise, got {', '.join(kwargs)}")
        if X.ndim != 2 or Y.shape != (len(X), self.num_outputs):
            shapes = f"X {tuple(X.shape)} and Y {tuple(Y.shape)}"
            raise ValueError(f"X must be (n, d) and Y (n, {self.num_outputs}), without batches; got {shapes}")
        if noise is not None and noise.shape != Y.shape:
            raise ValueError(f"noise holds variances of the shape of Y, {tuple(Y.shape)}, got {tuple(noise.shape)}")
        known = [None] * self.num_outputs if noise is None else noise.sqrt().T
        new = zip(self.posteriors, Y.T, known, strict=True)
        return PathwiseModel([old.update(X, y, std, self.generator) for old, y, std in new], self.generator)

    def fantasize(self, X: Tensor, sampler: MCSampler, **options: Any) -> Model:
        """Raise NotImplementedError: fantasies are a batch of models."""
        raise NotImplementedError(
            "PathwiseModel has no fantasies, which knowledge gradients and other look-ahead acquisition functions "
            "need: use qLogExpectedImprovement, qLogNoisyExpectedImprovement, qUpperConfidenceBound or "
            "PathwiseThompsonSampling"
        )


class _Functions(SamplePath):
    """Chosen paths of a model for BoTorch: path i at x[..., i, :, :] if x has a dimension of their number."""

    def __init__(self, model: PathwiseModel, index: Tensor) -> None:
        super().__init__()
        self.model, self.index = model, index

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        dims, (q, d) = self.index.ndim, x.shape[-2:]
        # (sample dims) x batch x q, or each path at its own points if the batch ends in the sample dims.
        if dims == 0 or x.ndim - 2 < dims or x.shape[-2 - dims : -2] != self.index.shape:
            return self.model.posterior(x).at(self.index)[..., 0]
        own = x.reshape(-1, self.index.numel(), q, d).transpose(0, 1)
        values = self.model.posteriors[0].paths_at(own.flatten(1, 2), self.index.flatten())
        return values.unflatten(1, (-1, q)).transpose(0, 1).reshape(x.shape[:-1])

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Do nothing: the model is not an ensemble in BoTorch's sense."""


@DrawMatheronPaths.register(PathwiseModel)
def _matheron_paths(model: PathwiseModel, *, sample_shape: Size, **strategies: Any) -> _Functions:
    """Draw distinct paths of the model."""
    if model.num_outputs > 1:
        raise NotImplementedError("paths of several outputs: draw those of each output by itself")
    count, wanted = model.posteriors[0].num_samples, sample_shape.numel()
    if wanted > count:
        raise ValueError(f"{wanted} paths asked for, the posterior has {count}: condition it with samples={wanted}")
    chosen = permutation(count, model.generator, torch.device("cpu"))[:wanted]
    return _Functions(model, chosen.view(sample_shape))


def iterative_update(
    solver: str | Solver = "auto", tol: float = 1e-3, generator: torch.Generator | None = None
) -> Callable[..., GeneralizedLinearPath]:
    """Return an ``update_strategy`` for BoTorch's `draw_matheron_paths` that solves iteratively, without Cholesky.

        draw_matheron_paths(model, Size([64]), update_strategy=iterative_update("ap"))

    The model must be an exact GP of GPyTorch or BoTorch without batches, whose kernel `from_gpytorch` can import.
    ``generator``: source of the noise and of the solver's draws; None draws a fresh seed. BoTorch draws the prior paths
    from torch's global generator.
    """
    chosen, source = as_solver(solver), as_generator(generator)

    def update(
        model: Any, sample_values: Tensor, target_values: Tensor | None = None, **kwargs: Any
    ) -> GeneralizedLinearPath:
        (points,) = get_train_inputs(model, transformed=True)
        targets = get_train_targets(model, transformed=True) if target_values is None else target_values
        if points.ndim != 2:
            raise ValueError(f"the inputs have shape {tuple(points.shape)}: one output is updated at a time")
        learned, known = read_noise(model.likelihood)
        deviation = torch.tensor(learned) if known is None else (known.square() + learned**2).sqrt()
        H = KernelOperator(from_gpytorch(model.covar_module), points, deviation)
        draws = normal(tuple(sample_values.shape), source, sample_values.dtype, sample_values.device)
        errors = (targets - sample_values - draws * deviation.to(sample_values)).reshape(-1, len(points))
        solution = chosen.solve(H, errors.T.contiguous().detach(), tol=tol, generator=source)
        features = KernelEvaluationMap(model.covar_module, points, input_transform=get_input_transform(model))
        return GeneralizedLinearPath(features, solution.x.T.reshape(sample_values.shape).contiguous())

    return update
