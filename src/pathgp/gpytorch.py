"""The door to GPyTorch: converts kernels and fitted exact models in both directions.

    from pathgp.gpytorch import from_gpytorch, to_gpytorch

    posterior = from_gpytorch(model).condition()     # a fitted gpytorch.models.ExactGP
    kernel = from_gpytorch(model.covar_module)       # a kernel alone
    model, likelihood = to_gpytorch(posterior)       # and back

GPyTorch keeps variances where we keep standard deviations, and its periodic kernel has lambda where ours has the square
of the length scale. Anything without a counterpart raises ValueError with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pathgp import kernels
from pathgp.kernels.expression import Columns, fold
from pathgp.means import Constant
from pathgp.models import GP
from pathgp.posterior.inducing import InducingPosterior
from pathgp.posterior.table import Posterior

try:
    import gpytorch
except ImportError as error:
    raise ImportError("pathgp.gpytorch needs GPyTorch: pip install 'pathgp[botorch]'") from error

theirs = gpytorch.kernels


@dataclass(frozen=True)
class Imported:
    """A model and the data it was fitted to.

    gp: kernel, noise and mean.  X: (n, d).  y: (n,).  noise: known standard deviations (n,), or None.
    """

    gp: GP
    X: Tensor
    y: Tensor
    noise: Tensor | None

    def condition(self, **options: Any) -> Posterior:
        """`GP.condition` on the data that came with the model."""
        return self.gp.condition(self.X, self.y, noise=self.noise, **options)


def from_gpytorch(source: Any) -> Any:
    """A kernel from a GPyTorch kernel, or an `Imported` model from a `gpytorch.models.ExactGP`, BoTorch's included.

    Kernels: RBF, Matern, RQ, Periodic, Linear, Scale, sums and products, length scales per dimension, active dims.
    Models: one output, GaussianLikelihood or FixedNoiseGaussianLikelihood, zero or constant mean, and a forward that
    applies mean_module and covar_module to the inputs as they are. Of transforms only BoTorch's Standardize of the
    outcome, its default: the imported model and its data are in the original units of y. The hyperparameters are
    copied: the models do not change each other. Priors and constraints are not copied: they change no prediction.
    """
    if isinstance(source, theirs.Kernel):
        return _import_kernel(source)
    if not isinstance(source, gpytorch.models.ExactGP):
        raise TypeError(f"from_gpytorch takes a GPyTorch kernel or ExactGP, got {type(source).__name__}")
    if source.train_inputs is None or source.train_targets is None:
        raise ValueError("the model has no training data")
    (X,), y = source.train_inputs, source.train_targets
    if X.ndim != 2 or y.ndim != 1:
        shapes = f"the inputs have shape {tuple(X.shape)}, y {tuple(y.shape)}"
        raise ValueError(f"one output is imported at a time: {shapes}")
    level, unit = _read_units(source)
    deviation, known = read_noise(source.likelihood)
    kernel = _import_kernel(source.covar_module)
    if unit != 1.0:
        bare, signal = (
            (kernel.kernel, float(kernel.signal.detach())) if isinstance(kernel, kernels.Scale) else (kernel, 1.0)
        )
        kernel = kernels.Scale(bare, unit * signal, kernel.active_dims)
        deviation, known = unit * deviation, None if known is None else unit * known
    gp = GP(kernel, noise=deviation, mean=_mean(source.mean_module, level, unit))
    _require_plain_forward(source, X)
    if known is not None and not isinstance(source.likelihood.second_noise, Tensor):
        gp.constrain("noise", fixed=True)
    return Imported(gp, X.detach(), level + unit * y.detach(), known)


def to_gpytorch(source: kernels.Kernel | Posterior) -> Any:
    """A GPyTorch kernel from a kernel, or (model, likelihood) from a posterior, ready to predict.

    A posterior must have a constant mean and no standardisation: GPyTorch keeps data in one unit only.
    """
    if isinstance(source, kernels.Kernel):
        return fold(source, _export_kernel)
    if not isinstance(source, Posterior):
        raise TypeError(f"to_gpytorch takes a pathgp kernel or Posterior, got {type(source).__name__}")
    if isinstance(source, InducingPosterior):
        raise TypeError("an InducingPosterior has no counterpart in GPyTorch: convert the posterior of a pathgp.GP")
    gp, system = source.model, source.system.require_targets("to_gpytorch")
    if gp.standardise:
        raise ValueError("standardise=True has no counterpart in GPyTorch: standardise the data yourself")
    if callable(gp.mean) and not isinstance(gp.mean, Constant):
        raise ValueError("a mean function has no counterpart in GPyTorch: subtract it from y")
    level = float(gp.mean.value.detach() if isinstance(gp.mean, Constant) else gp.mean)
    mean = gpytorch.means.ConstantMean().initialize(constant=level)
    X, y = system.X, system.targets[:, 0] + level
    if system.deviation.ndim:
        likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise=system.deviation.square().to(X))
    else:
        least = gpytorch.constraints.GreaterThan(min(1e-4, 0.5 * float(system.deviation) ** 2))
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=least).to(torch.float64)
        likelihood.initialize(noise=system.deviation.detach().cpu().square())
    model = _ExactModel(X, y, likelihood, mean, fold(gp.kernel, _export_kernel)).to(X)
    return model.eval(), model.likelihood.eval()


def _read_units(model: Any) -> tuple[float, float]:
    """Level and unit of y, which is level + unit * targets for the targets that the model keeps."""
    for name in ("input_transform", "outcome_transform"):
        transform = getattr(model, name, None)
        if transform is None:
            continue
        from botorch.models.transforms.outcome import Standardize

        if type(transform) is not Standardize:
            raise ValueError(
                f"the model has an {name}, {type(transform).__name__}, which cannot be imported: build it with "
                f"{name}=None and give it the transformed data"
            )
        return float(transform.means), float(transform.stdvs)
    return 0.0, 1.0


def _require_plain_forward(model: Any, X: Tensor) -> None:
    """Refuse a model whose ``forward`` changes its inputs, mean or covariance: only the modules are converted."""
    rows = X[torch.linspace(0, len(X) - 1, min(len(X), 5)).long()]
    with torch.no_grad():
        prior = model.forward(rows)
        mean, covariance = model.mean_module(rows), model.covar_module(rows).to_dense()
        # A jitter that the forward adds is no other model.
        variance = covariance.diagonal().max()
        is_same = bool((prior.covariance_matrix - covariance).abs().max() <= 1e-3 * variance)
        is_same &= bool((prior.mean - mean).abs().max() <= 1e-3 * variance.sqrt())
    if not is_same:
        raise ValueError(
            f"the forward of {type(model).__name__} computes something else than mean_module(X) and covar_module(X), "
            "such as a network or a scaling of the inputs, which cannot be imported: apply it to the data, and import "
            "a model of the result"
        )


def _import_kernel(source: Any) -> kernels.Kernel:
    if len(source.batch_shape):
        shape = tuple(source.batch_shape)
        raise ValueError(f"{type(source).__name__} has batch shape {shape}: import one model at a time")
    if type(source) not in _READERS:
        known = ", ".join(sorted(kind.__name__ for kind in _READERS))
        raise ValueError(f"{type(source).__name__} cannot be imported; these can: {known}")
    result = _READERS[type(source)](source)
    if source.active_dims is not None:
        result.active_dims = tuple(int(i) for i in source.active_dims)
    return result


def _values(parameter: Tensor) -> Tensor:
    """A (1, d) parameter as a scalar or (d,), float64."""
    flat = parameter.detach().to(torch.float64).cpu().reshape(-1)
    return flat.clone() if len(flat) > 1 else flat[0].clone()


def _scale(source: Any) -> kernels.Kernel:
    base = _import_kernel(source.base_kernel)
    # GPyTorch moves the columns of a base kernel to its scale, and reads only those.
    base.active_dims = None
    return kernels.Scale(base, _values(source.outputscale).sqrt())


def _sum(source: Any) -> kernels.Kernel:
    """A constant beside a linear kernel is its intercept; elsewhere it has no counterpart."""
    constants = [part for part in source.kernels if isinstance(part, theirs.ConstantKernel)]
    parts = [_import_kernel(part) for part in source.kernels if part not in constants]
    if constants:
        bias = torch.stack([_values(part.constant) for part in constants]).sum().sqrt()
        linear = next((part for part in parts if isinstance(part, kernels.Linear)), None)
        if linear is None:
            advice = "without a LinearKernel in the same sum, whose intercept it would be: use ConstantMean"
            raise ValueError(f"ConstantKernel cannot be imported {advice}")
        parts[parts.index(linear)] = kernels.Linear(linear.scale.detach(), bias, linear.active_dims)
    return kernels.Sum(*parts) if len(parts) > 1 else parts[0]


_READERS: dict[type, Callable[[Any], kernels.Kernel]] = {
    theirs.RBFKernel: lambda k: kernels.SquaredExponential(_values(k.lengthscale)),
    theirs.MaternKernel: lambda k: kernels.Matern(float(k.nu), _values(k.lengthscale)),
    theirs.RQKernel: lambda k: kernels.RationalQuadratic(float(k.alpha.detach()), _values(k.lengthscale)),
    theirs.PeriodicKernel: lambda k: kernels.Periodic(_values(k.period_length), _values(k.lengthscale).sqrt()),
    theirs.LinearKernel: lambda k: kernels.Linear(_values(k.variance).sqrt()),
    theirs.ScaleKernel: _scale,
    theirs.AdditiveKernel: _sum,
    theirs.ProductKernel: lambda k: kernels.Product(*map(_import_kernel, k.kernels)),
}


def read_noise(likelihood: Any) -> tuple[float, Tensor | None]:
    """The learned standard deviation, and the known ones of the rows, or None."""
    if type(likelihood) is gpytorch.likelihoods.GaussianLikelihood:
        return float(likelihood.noise.detach().sqrt()), None
    if isinstance(likelihood, gpytorch.likelihoods.FixedNoiseGaussianLikelihood):
        known = likelihood.noise_covar.noise.detach().sqrt()
        learned = likelihood.second_noise
        deviation = float(learned.detach().sqrt()) if isinstance(learned, Tensor) else 0.0
        # A GP needs positive noise of its own: a millionth of the known one changes nothing.
        return (deviation or 1e-6 * float(known.min())), known
    raise ValueError(f"{type(likelihood).__name__} cannot be imported: only Gaussian noise, learned or known")


def _mean(source: Any, level: float, unit: float) -> float | Constant:
    if isinstance(source, gpytorch.means.ZeroMean):
        return level
    if isinstance(source, gpytorch.means.ConstantMean):
        return Constant(level + unit * float(source.constant.detach()))
    raise ValueError(f"{type(source).__name__} cannot be imported: only ZeroMean and ConstantMean")


def _export_kernel(node: kernels.Kernel, columns: Columns, parts: Iterator[Any]) -> Any:
    """The counterpart of a kernel, from those of its parts; only elementary kernels name their columns there."""
    if isinstance(node, kernels.Scale):
        return _set(theirs.ScaleKernel(next(parts)), outputscale=node.signal.square())
    if isinstance(node, kernels.Sum):
        return theirs.AdditiveKernel(*parts)
    if isinstance(node, kernels.Product):
        return theirs.ProductKernel(*parts)
    if type(node) not in _WRITERS:
        known = ", ".join(sorted(kind.__name__ for kind in _WRITERS))
        raise ValueError(f"{type(node).__name__} has no counterpart in GPyTorch; these have one: {known}")
    if isinstance(node, kernels.Matern) and node.nu not in (0.5, 1.5, 2.5):
        raise ValueError(f"Matern with nu={node.nu:g} has no counterpart in GPyTorch, which has 0.5, 1.5 and 2.5")
    make, values = _WRITERS[type(node)](node)
    dims = [len(value) for value in values.values() if value.ndim]
    options = {"ard_num_dims": dims[0]} if dims else {}
    exported = _set(make(**options, active_dims=None if columns is None else torch.tensor(columns)), **values)
    if isinstance(node, kernels.Linear) and node.bias is not None:
        exported += _set(theirs.ConstantKernel(), constant=node.bias.square())
    return exported


def _set(kernel: Any, **values: Tensor) -> Any:
    return kernel.to(torch.float64).initialize(**{name: value.detach().cpu() for name, value in values.items()})


# For each kernel its class in GPyTorch and the values of the parameters there.
_WRITERS: dict[type, Callable[[Any], tuple[Callable[..., Any], dict[str, Tensor]]]] = {
    kernels.SquaredExponential: lambda k: (theirs.RBFKernel, {"lengthscale": k.lengthscale}),
    kernels.Matern: lambda k: (partial(theirs.MaternKernel, k.nu), {"lengthscale": k.lengthscale}),
    kernels.RationalQuadratic: lambda k: (theirs.RQKernel, {"lengthscale": k.lengthscale, "alpha": k.alpha}),
    kernels.Periodic: lambda k: (
        theirs.PeriodicKernel,
        {"lengthscale": k.lengthscale.square(), "period_length": k.period},
    ),
    kernels.Linear: lambda k: (theirs.LinearKernel, {"variance": k.scale.square()}),
}


class _ExactModel(gpytorch.models.ExactGP):
    """The smallest exact model of GPyTorch."""

    def __init__(self, X: Tensor, y: Tensor, likelihood: Any, mean: Any, kernel: Any) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = mean, kernel

    def forward(self, X: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))
