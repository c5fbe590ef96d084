"""A model of a growing data set: fitted on a schedule, and updated from its last solution between two fits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pathgp.compute.inputs import real_number, whole_number
from pathgp.compute.random import spawn_generator
from pathgp.kernels import Kernel, Stationary
from pathgp.kernels.expression import leaves
from pathgp.kernels.parameters import LogNormal, positive
from pathgp.means import Constant
from pathgp.models import GP
from pathgp.pathwise import PriorPaths
from pathgp.posterior.table import Posterior

# Rows below which hyperparameters are not learned.
_LEAST_ROWS = 4
# Probes of the gradient in a fit, which only learns the hyperparameters.
_PROBES = 16
# Median of the prior of a length scale in d columns, as a share of sqrt(d) times the width of the box: distances grow
# with sqrt(d) (Hvarfner et al., 2024).
_MEDIAN = 0.2
# Standard deviation of the logarithm of the length scale in this prior.
_SPREAD = math.sqrt(3.0)
# Observations contradict the posterior if their mean squared error exceeds this multiple of the predicted one.
_SURPRISE = 4.0
# Minimum gain of a fit, in nats per row. It is larger than the default, because a result is used for few rounds.
_MIN_GAIN = 2e-3
# Default of the option ``features`` of `GP.condition`.
_FEATURES: int = inspect.signature(GP.condition).parameters["features"].default
# Arguments of `GP.fit` and `GP.condition` that a surrogate sets.
_OWN_OPTIONS = ("X", "y", "noise", "generator")


class Surrogate:
    """Data, a model and its posterior.

    The mean of a standardising model is the average of y unless it is a function. The observations of an optimisation
    are near its best points, so that their average is a biased estimate of the level far from the data: paths are
    too optimistic there. If hyperparameters are learned and the domain is known, a learned constant replaces it,

        mu(x) = m,

    which is the average of y before the first fit.

    Args:
        gp: the model; fits change its hyperparameters, and its mean may become a `means.Constant`.
        refit: learn the hyperparameters when there are ``refit`` times as many rows as at the last fit; None never
            learns them. Observations that contradict the posterior bring the next fit forward.
        width: widths (d,) of the domain, for the prior of length scales; None for no prior and no learned level.
        fit: options of `GP.fit`.
        condition: options of `GP.condition`.
        generator: source of all draws.
    """

    def __init__(
        self,
        gp: GP,
        refit: float | None,
        width: Tensor | None,
        fit: Mapping[str, Any] | None,
        condition: Mapping[str, Any] | None,
        generator: torch.Generator,
    ) -> None:
        if not isinstance(gp, GP):
            hint = f": use pathgp.GP({gp!r})" if isinstance(gp, Kernel) else ""
            raise TypeError(f"the model must be a pathgp.GP, got {type(gp).__name__}{hint}")
        if refit is not None and not real_number(refit, "refit") > 1.0:
            raise ValueError(f"refit is the growth of the data between two fits, more than 1, or None; got {refit}")
        self.gp, self.refit, self.width, self.generator = gp, refit, width, generator
        self.fit_options = read_options(fit, "fit", gp.fit, _OWN_OPTIONS)
        self.condition_options = read_options(condition, "condition", gp.condition, _OWN_OPTIONS)
        self._least_samples = whole_number(self.condition_options.get("samples", 0), "samples", 0)
        self.X, self.y = torch.empty(0, 0), torch.empty(0, dtype=torch.float64)
        self.fitted_rows = 0
        self._posterior: Posterior | None = None
        self._learns_level = refit is not None and width is not None and gp.standardise and not callable(gp.mean)

    def prepared_model(self, X: Tensor) -> GP:
        """A copy of the model as `prepare` leaves it, on the CPU.

        ValueError if its kernel cannot be evaluated at inputs X (m, d), or has no paths: found before any evaluation.
        """
        model = self.gp.working_copy(torch.device("cpu"))
        if self._learns_level:
            model.mean = Constant()
        features = self.condition_options.get("features", _FEATURES)
        try:
            with torch.no_grad():
                model.kernel(X.to("cpu", torch.float64))
            PriorPaths.draw(model.kernel, 1, features, X.shape[1], torch.Generator().manual_seed(0))
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ValueError(f"the model cannot be used for inputs of {X.shape[1]} columns: {error}") from error
        return model

    def prepare(self) -> None:
        """Replace the mean of the model by the learned level, once all arguments are known to be valid."""
        if self._learns_level:
            self.gp.mean = Constant()

    def add(self, X: Tensor, y: Tensor) -> None:
        """Add observations: X (m, d) and y (m,), finite."""
        if self.refit is not None and len(y) and self._contradicts_posterior(X, y):
            self.fitted_rows = 0
        self.X = torch.cat([self.X, X]) if len(self.y) else X.clone()
        self.y = torch.cat([self.y, y.to(torch.float64)]) if len(self.y) else y.to(torch.float64).clone()

    @property
    def is_fit_due(self) -> bool:
        """Whether the next posterior begins with a fit."""
        return self.refit is not None and len(self.y) >= max(_LEAST_ROWS, self.refit * self.fitted_rows)

    @property
    def last(self) -> Posterior | None:
        """The last posterior; None before the first one, and after `redraw`."""
        return self._posterior

    def redraw(self) -> None:
        """Forget the last posterior, so that the next one draws new paths."""
        self._posterior = None

    def posterior(self, samples: int) -> Posterior:
        """The posterior given all data, with at least ``samples`` paths.

        Learns the hyperparameters first if a fit is due. After a fit, and for more samples than before, new prior paths
        are drawn. Otherwise the last posterior is updated: it keeps its prior paths, and the solve starts from the last
        solution.
        """
        if self._learns_level and self.fitted_rows == 0:
            self._set_level()
        if self.is_fit_due:
            self._fit()
        post = self._posterior
        if post is None or post.num_samples < samples:
            options = self.condition_options | {"samples": max(samples, self._least_samples)}
            post = self.gp.condition(self.X, self.y, generator=spawn_generator(self.generator), **options)
        elif (known := post.report.rows) < len(self.y):
            post = post.update(self.X[known:], self.y[known:], generator=spawn_generator(self.generator))
        self._posterior = post
        return post

    def _set_level(self) -> None:
        """Set the learned level to the average of y: before the first fit, and after a contradiction."""
        assert isinstance(self.gp.mean, Constant)
        with torch.no_grad():
            self.gp.mean.value.fill_(float(self.y.mean()))

    def _fit(self) -> None:
        """Learn the hyperparameters from their last values; at first, and after a contradiction, from the data."""
        start = "model" if self.fitted_rows else "auto"
        options = {"samples": _PROBES, "initialise": start, "min_gain": _MIN_GAIN, **self.fit_options}
        with default_priors(self.gp, self.X, self.width):
            self.gp.fit(self.X, self.y, generator=spawn_generator(self.generator), **options)
        self.fitted_rows, self._posterior = len(self.y), None

    @torch.no_grad()
    def _contradicts_posterior(self, X: Tensor, y: Tensor) -> bool:
        """Whether observations X (m, d), y (m,) are far from the predictions of the last posterior."""
        post = self._posterior
        # One path has no variance.
        if post is None or not post.has_paths or post.num_samples < 2:
            return False
        error = (y - post.mean(X)).square().mean()
        predicted = post.paths(X).var(0).mean() + float(post.noise_std) ** 2
        return bool(error > _SURPRISE * predicted)


def read_options(
    options: Mapping[str, Any] | None, name: str, function: Callable[..., Any], own: Collection[str]
) -> dict[str, Any]:
    """Check the names of options that are passed on to a function; ``own``: its arguments that the caller sets."""
    if not (options is None or isinstance(options, Mapping)):
        raise TypeError(f"{name} is a dict of options of {function.__name__}, got {type(options).__name__}")
    parameters = inspect.signature(function).parameters
    known = [option for option in parameters if option not in own]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options or {}:
        if option in own:
            raise TypeError(f"{name}={{{option!r}: ...}} is not an option here: it is set for every call")
        if option not in known and not takes_any:
            raise TypeError(f"{name}={{{option!r}: ...}} is not an option of {function.__name__}: {', '.join(known)}")
    return dict(options or {})


@contextmanager
def default_priors(gp: GP, X: Tensor, width: Tensor | None) -> Iterator[None]:
    """A context in which length scales without prior and bounds have a default prior, for a fit of inputs X (n, d).

    The likelihood of few observations in many columns is often largest where half of the columns have no effect; paths
    would then be maximised in a wrong subspace.
    """
    changed = []
    for kernel, columns in leaves(gp.kernel, range(X.shape[1])):
        if width is None or not isinstance(kernel, Stationary):
            continue
        parameter, seen = positive(kernel, "lengthscale"), list(columns)
        if parameter.prior is None and parameter.bounds is None:
            scale = X[:, seen].std(0, correction=0).to(width) if gp.standardise else torch.ones_like(width[seen])
            extent = torch.where(scale > 0, width[seen] / scale, 1.0).log().mean().exp()
            parameter.prior = LogNormal(_MEDIAN * math.sqrt(len(seen)) * float(extent), _SPREAD)
            changed.append(parameter)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.prior = None
