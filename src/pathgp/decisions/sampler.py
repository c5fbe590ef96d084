"""Thompson sampling in batches: data, model, and a file from which an interrupted optimisation continues."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pathgp.compute.inputs import Array, read_matrix, read_vector, whole_number
from pathgp.compute.random import as_generator, permutation
from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.decisions import checkpoint as checkpoints
from pathgp.decisions.domain import Constraint, Domain, read_bounds, read_candidates
from pathgp.decisions.history import History, Round
from pathgp.decisions.region import best_region, count_local_paths
from pathgp.decisions.surrogate import Surrogate, read_options
from pathgp.decisions.thompson import maximise_paths, read_search
from pathgp.models import GP
from pathgp.posterior.table import Posterior

# Arguments of `maximise_paths` that a sampler sets.
_OWN_OPTIONS: tuple[str, ...] = ("post", "bounds", "candidates", "choices", "constraint", "minimise", "which")
_OWN_OPTIONS += ("distinct", "avoid", "generator")
# Default of the search option ``min_gain``, see `maximise_paths`: a share of the standard deviation of y.
_MIN_GAIN = 1e-3


class Best(NamedTuple):
    """The best observation: its inputs (d,) and its value."""

    X: Array
    y: float


class ThompsonSampler:
    """Optimise an expensive function in batches: ``ask`` for inputs, evaluate, ``tell`` the values.

        sampler = ThompsonSampler(gp, bounds)
        for _ in range(10):
            X = sampler.ask(100)
            sampler.tell(X, function(X))
        sampler.best

    Every input of a batch belongs to one posterior path, see `maximise_paths`. From 20 observations on, the share
    d / (d + 6) of the paths is maximised in the region of the best observations, the other paths in the whole box. A
    maximum at which the path equals the posterior mean would give no information: in the region such a path is
    maximised in the box instead, and in the box nine of ten such paths return a local maximum near a uniform point.
    From ``candidates`` every path takes its best one. The first batch is uniform in the box, or random candidates,
    unless data were told before.

    The level of a standardising model without a mean function is learned as a `means.Constant`: the average of y would
    be biased, because the inputs of an optimisation are near the best ones.

    Between two fits the paths keep their prior draws, and the solve starts from the last solution. (The inputs then
    depend on the draws of earlier rounds, which a fit renews.)

    Args:
        gp: the model; fits change its hyperparameters, and its mean may become a `means.Constant`.
        bounds: lower and upper ends of the columns, (2, d). Inputs are returned as the kind of array that this is.
        candidates: in place of bounds, inputs (c, d) to choose from, none of them twice.
        choices: columns that take one of a list of values, as in `maximise_paths`.
        constraint: function of inputs (m, d) that returns m booleans; points where it is False are not asked for.
        minimise: look for the minimum.
        refit: learn the hyperparameters when there are ``refit`` times as many data as at the last fit; None never
            learns them. Values that contradict the posterior, with a mean squared error of four times the predicted
            one, bring the next fit forward.
        fit, condition, search: options of `GP.fit`, `GP.condition` and `maximise_paths`.
        checkpoint: a file that every ``ask`` and ``tell`` writes. If it exists, the sampler continues from it: data,
            inputs without a value yet (`pending`), hyperparameters, history and the state of the generator. The
            posterior is solved again. The file must be of the same bounds and of a model that differs in the values of
            its hyperparameters only; `read_evaluations` reads any other. Constraint and choices are not in the file.
        generator: source of all draws; None draws a fresh seed.
    """

    def __init__(
        self,
        gp: GP,
        bounds: Array | None = None,
        *,
        candidates: Array | None = None,
        choices: Mapping[int, Sequence[float]] | None = None,
        constraint: Constraint | None = None,
        minimise: bool = False,
        refit: float | None = 1.5,
        fit: Mapping[str, Any] | None = None,
        condition: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if (bounds is None) == (candidates is None):
            raise TypeError("give either bounds (2, d) or candidates (c, d)")
        if candidates is not None and choices is not None:
            raise TypeError("choices belong to bounds: leave candidates out that they forbid")
        given = read_bounds(bounds) if candidates is None else read_candidates(candidates)
        # A copy: the caller may change the array.
        self._candidates = None if candidates is None else replace(given, X=given.X.detach().clone())
        if candidates is None:
            assert bounds is not None
            self.domain = replace(Domain.read(bounds, choices, constraint, given.X.device), is_numpy=given.is_numpy)
        else:
            self.domain = Domain.of_candidates(given.X, constraint, given.is_numpy)
        self.minimise, self.history = minimise, History()
        self._search = read_search(read_options(search, "search", maximise_paths, _OWN_OPTIONS))
        self._format, self._generator = given, as_generator(generator)
        self._surrogate = Surrogate(gp, refit, self.domain.width, fit, condition, self._generator)
        box = torch.stack([self.domain.lower, self.domain.upper])
        model = self._surrogate.prepared_model(box if self._candidates is None else self._candidates.X[:2])
        empty = given.X.new_empty(0, given.X.shape[1], dtype=torch.float64)
        self._pending, self._failed = empty, empty
        self._began = time.monotonic()
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._problem = checkpoints.describe_problem(self.domain, minimise, model)
        content = None
        if self._checkpoint is not None and self._checkpoint.exists():
            content = checkpoints.read(self._checkpoint)
            checkpoints.require_same_problem(self._checkpoint, content, self._problem, model)
        # From here on nothing is refused: a refused sampler leaves the caller's model as it was.
        self._surrogate.prepare()
        if content is not None:
            self._restore(content)

    @property
    def gp(self) -> GP:
        """The model."""
        return self._surrogate.gp

    @property
    def X(self) -> Array:
        """Inputs with finite values (n, d), a copy."""
        return self._to_caller(self._surrogate.X if len(self._surrogate.y) else self._pending[:0])

    @property
    def y(self) -> Array:
        """Their values (n,), a copy."""
        return self._to_caller(self._surrogate.y)

    @property
    def pending(self) -> Array:
        """Inputs that were asked for and have no value yet (m, d), after a crash too; a copy."""
        return self._to_caller(self._pending)

    @property
    def best(self) -> Best:
        """The observation with the largest value, or the smallest for ``minimise``."""
        if not len(self._surrogate.y):
            failed = f": all {len(self._failed)} evaluations failed" if len(self._failed) else ": call tell first"
            raise ValueError(f"there are no finite values yet{failed}")
        row = self._surrogate.y.argmin() if self.minimise else self._surrogate.y.argmax()
        return Best(self._to_caller(self._surrogate.X[row]), float(self._surrogate.y[row]))

    def ask(self, count: int) -> Array:
        """Return inputs to evaluate (count, d): one for each of ``count`` paths, none of them asked for before.

        They stay `pending` until `tell` gets their values. Fewer rows, with a warning, if fewer candidates are left.
        Inputs are repeated, with a warning, if a box has no others, such as with choices for all columns.
        """
        count = whole_number(count, "count", 1)
        if self._candidates is not None:
            count = self._limit_to_candidates(count)
        X = self._random(count) if not len(self._surrogate.y) else self._maxima(count)
        if self._candidates is None:
            X = self._replace_repeated(X)
        self._pending = torch.cat([self._pending, X])
        self._save()
        return self._to_caller(X)

    def tell(self, X: Array, y: Array) -> None:
        """Add values y (m,) of the inputs X (m, d), asked for or not.

        Values that are not finite are failures: they are counted, kept out of the model, and not asked for again.
        """
        source = "the bounds have" if self._candidates is None else "the candidates have"
        inputs = read_matrix(X, "X", len(self.domain.lower), source=source).X.detach().to(self._pending)
        if not len(inputs):
            raise ValueError("X has no rows: tell at least one value")
        home = y if isinstance(y, Tensor) else self._pending
        values = read_vector(y, len(inputs), "y", home, only_finite=False).detach().to(self._pending)
        finite = torch.isfinite(values)
        if failures := int((~finite).sum()):
            has_values = bool(finite.any()) or len(self._surrogate.y) > 0
            consequence = "" if has_values else "; without any finite value the next inputs are random again"
            warnings.warn(
                f"{failures} of {len(values)} values are not finite: they are kept as failures, outside of the model"
                f"{consequence}",
                stacklevel=levels_to_the_caller(),
            )
        self._surrogate.add(inputs[finite], values[finite])
        self._failed = torch.cat([self._failed, inputs[~finite]])
        self._pending = self._pending[~self.domain.is_among(self._pending, inputs)]
        self._record(values[finite], failures)
        self._save()

    @property
    def posterior(self) -> Posterior | None:
        """The posterior of the last `ask`; None before the first one that used a model."""
        return self._surrogate.last

    def to_html(
        self,
        path: str | os.PathLike[str],
        names: Sequence[str] | None = None,
        target: str = "y",
        title: str | None = None,
    ) -> None:
        """Write a report on the optimisation as one HTML page without scripts or requests.

        The page shows the best evaluations, the best value against evaluations and seconds, all rounds and the model.

        Args:
            path: the file.
            names: names of the inputs; x0, x1, ... by default.
            target: name of the values.
            title: title of the page.
        """
        from pathgp.html.optimisation import write_optimisation

        write_optimisation(self, path, names, target, title)

    def __repr__(self) -> str:
        state = f"{len(self._surrogate.y):,} evaluations in {len(self.history)} rounds"
        best = f", best {self.best.y:.6g}" if len(self._surrogate.y) else ""
        failed = f", {len(self._failed)} failed" if len(self._failed) else ""
        return f"ThompsonSampler({state}{best}, {len(self._pending)} pending{failed})"

    def _to_caller(self, values: Tensor) -> Array:
        """A copy in the caller's own kind of array."""
        return self._format.to_caller(values.clone())

    def _known(self) -> Tensor:
        """All inputs that must not be asked for again: with values, failed and pending ones."""
        observed = self._surrogate.X.to(self._pending) if len(self._surrogate.y) else self._pending[:0]
        return torch.cat([observed, self._failed, self._pending])

    def _maxima(self, count: int) -> Tensor:
        """Inputs for ``count`` paths of the posterior (count, d)."""
        if len(self._pending):
            # The paths of the last call would have the same maxima.
            self._surrogate.redraw()
        post = self._surrogate.posterior(count)
        paths = permutation(post.num_samples, self._generator, torch.device("cpu"))[:count]
        return self._best_candidates(post, paths) if self._candidates is not None else self._best_points(post, paths)

    def _replace_repeated(self, X: Tensor) -> Tensor:
        """Points X (m, d) of the box with random other ones in place of those that were asked for before, or twice.

        Points are repeated, with a warning, if there are no others.
        """
        seen, repeated = set(self.domain.keys(self._known())), []
        for row, key in enumerate(self.domain.keys(X)):
            if key in seen:
                repeated.append(row)
            seen.add(key)
        if not repeated:
            return X
        others = self.domain.combinations()
        others = self.domain.uniform(len(repeated), self._generator) if others is None else others
        others = others[permutation(len(others), self._generator, others.device)]
        new: list[int] = []
        for row, key in enumerate(self.domain.keys(others)):
            if key not in seen and len(new) < len(repeated):
                new.append(row)
                seen.add(key)
        X = X.clone()
        X[repeated[: len(new)]] = others[new]
        if left := len(repeated) - len(new):
            warnings.warn(
                f"{left} of {len(X)} inputs repeat earlier ones: no others were found in the box",
                stacklevel=levels_to_the_caller(),
            )
        return X

    def _best_candidates(self, post: Posterior, paths: Tensor) -> Tensor:
        assert self._candidates is not None
        candidates = self._format.to_caller(self._candidates.X)
        return self._maximise(post, paths, self._known(), candidates=candidates)

    def _best_points(self, post: Posterior, paths: Tensor) -> Tensor:
        """Maxima of the first paths in the region of the best observations, of all others in the box.

        Paths whose maximum in the region is not informative are maximised in the box.
        """
        box = torch.stack([self.domain.lower, self.domain.upper])
        y = -self._surrogate.y if self.minimise else self._surrogate.y
        region = best_region(self.domain, self._surrogate.X, y, self._generator)
        choices = {column: values.tolist() for column, values in self.domain.choices.items()}
        local_maxima, count = self._pending[:0], count_local_paths(len(paths), len(self.domain.lower))
        if region is not None and count:
            in_region, ends = paths[:count], self._format.to_caller(region)
            X = self._maximise(post, in_region, self._known(), bounds=ends, choices=choices, min_gain=0.0)
            is_informative = self._is_informative(post, X, in_region)
            others = in_region[~is_informative.to(in_region.device)]
            local_maxima, paths = X[is_informative], torch.cat([others, paths[count:]])
            if not len(paths):
                return local_maxima
        avoid, ends = torch.cat([self._known(), local_maxima]), self._format.to_caller(box)
        return torch.cat([local_maxima, self._maximise(post, paths, avoid, bounds=ends, choices=choices)])

    def _maximise(self, post: Posterior, paths: Tensor, avoid: Tensor, **domain: Any) -> Tensor:
        """Call `maximise_paths` with the options of the user; ``domain``: bounds and choices, or candidates."""
        options: dict[str, Any] = {"constraint": self.domain.constraint, "minimise": self.minimise}
        options |= {"min_gain": _MIN_GAIN} | self._search | domain
        known = self._format.to_caller(avoid)
        X, _ = maximise_paths(post, which=paths.tolist(), avoid=known, generator=self._generator, **options)
        return torch.as_tensor(X).to(self._pending)

    @torch.no_grad()
    def _is_informative(self, post: Posterior, X: Tensor, paths: Tensor) -> Tensor:
        """Whether paths (p,) differ from the posterior mean at their maxima X (p, d) by at least ``min_gain``: (p,)."""
        values = post.paths_at(X.unsqueeze(1), paths)[:, 0]
        min_gain = self._search.get("min_gain", _MIN_GAIN)
        return (values - post.mean(X)).abs() >= min_gain * self._surrogate.y.std(correction=0)

    def _random(self, count: int) -> Tensor:
        """Uniform inputs of the box, or random candidates."""
        if self._candidates is None:
            return self.domain.uniform(count, self._generator)
        rows = self._remaining_candidates()
        return self._candidates.X[rows[permutation(len(rows), self._generator, rows.device)[:count]]].to(self._pending)

    def _remaining_candidates(self) -> Tensor:
        """Indices of the allowed candidates that were not asked for."""
        assert self._candidates is not None
        X = self._candidates.X
        known, allowed = set(self.domain.keys(self._known())), self.domain.allows(X)
        rows = []
        for row, key in enumerate(self.domain.keys(X)):
            if key not in known and bool(allowed[row]):
                rows.append(row)
                known.add(key)
        return torch.tensor(rows, dtype=torch.long, device=X.device)

    def _limit_to_candidates(self, count: int) -> int:
        """``count``, or the number of remaining candidates if that is smaller; ValueError if it is zero."""
        assert self._candidates is not None
        left = len(self._remaining_candidates())
        if left == 0 and not bool(self.domain.allows(self._candidates.X).any()):
            raise ValueError("the constraint allows none of the candidates")
        if left == 0:
            raise ValueError("all candidates have been asked for: add candidates, or stop here")
        if left < count:
            warnings.warn(
                f"{count} inputs asked for, {left} candidates are left: these are returned",
                stacklevel=levels_to_the_caller(),
            )
        return min(count, left)

    def _record(self, values: Tensor, failures: int) -> None:
        pick = min if self.minimise else max
        batch = pick(values.tolist(), default=math.nan)
        seconds = time.monotonic() - self._began
        best = self.best.y if len(self._surrogate.y) else math.nan
        self.history.rounds.append(Round(len(self._surrogate.y), best, batch, failures, seconds))

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        content = self._problem | {
            "X": self._surrogate.X,
            "y": self._surrogate.y,
            "pending": self._pending,
            "failed": self._failed,
            "fitted_rows": self._surrogate.fitted_rows,
            "hyperparameters": dict(self.gp.state_dict()),
            "generator": self._generator.get_state(),
            # NaN, the best of a batch of failures, is not JSON.
            "rounds": torch.tensor([list(asdict(each).values()) for each in self.history.rounds], dtype=torch.float64),
            "seconds": time.monotonic() - self._began,
        }
        checkpoints.write(self._checkpoint, content)

    def _restore(self, content: dict[str, Any]) -> None:
        self.gp.load_state_dict(content["hyperparameters"])
        device = self._pending.device
        if len(content["y"]):
            self._surrogate.add(content["X"].to(device), content["y"].to(device))
        self._surrogate.fitted_rows = content["fitted_rows"]
        self._pending, self._failed = content["pending"].to(device), content["failed"].to(device)
        self._generator.set_state(content["generator"])
        self._began = time.monotonic() - content["seconds"]
        for evaluations, best, batch, failed, seconds in content["rounds"].tolist():
            self.history.rounds.append(Round(int(evaluations), best, batch, int(failed), seconds))
