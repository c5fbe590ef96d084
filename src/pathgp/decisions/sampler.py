"""Thompson sampling in batches, with the data, the model and a file to continue from."""

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

from pathgp.compute import files
from pathgp.compute.inputs import Array, read_matrix, whole_number
from pathgp.compute.random import as_generator, permutation
from pathgp.compute.stacklevel import levels_to_the_caller
from pathgp.decisions.domain import Constraint, Domain
from pathgp.decisions.history import History, Round
from pathgp.decisions.surrogate import Surrogate
from pathgp.decisions.thompson import maximise_paths
from pathgp.models import GP
from pathgp.posterior.table import Posterior

# Increase this number if earlier files cannot be continued.
FORMAT = 1


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

    Every input of a batch is the maximum of one posterior path, see `maximise_paths`. The first batch is uniform in the
    box unless data were told before. Between two fits the paths keep their prior draws, and the solve starts from the
    last solution. (The inputs then depend on the draws of earlier rounds, which a fit renews.)

    Args:
        gp: the model; fits change its hyperparameters.
        bounds: lower and upper ends of the columns, (2, d). Inputs are returned as the kind of array that this is.
        candidates: in place of bounds, inputs (c, d) to choose from, none of them twice.
        choices: columns that take one of a list of values, as in `maximise_paths`.
        constraint: function of inputs (m, d) that returns m booleans; points where it is False are not asked for.
        minimise: look for the minimum.
        refit: learn the hyperparameters when there are ``refit`` times as many data as at the last fit; None never
            learns them.
        fit, condition, search: options of `GP.fit`, `GP.condition` and `maximise_paths`.
        checkpoint: a file that is written by every ``ask`` and ``tell``, and continued from if it exists: data, inputs
            without a value yet (`pending`), hyperparameters, history and the state of the generator. The posterior is
            solved anew.
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
        given = read_matrix(
            bounds if candidates is None else candidates, "bounds" if candidates is None else "candidates"
        )
        self._candidates = None if candidates is None else given
        ends = bounds if candidates is None else torch.stack([given.X.amin(0) - 1.0, given.X.amax(0) + 1.0])
        self.domain = replace(Domain.read(ends, choices, constraint, given.X.device), is_numpy=given.is_numpy)
        self.minimise, self.history, self._search = minimise, History(), dict(search or {})
        self._kind, self._generator = given, as_generator(generator)
        self._model = Surrogate(gp, refit, fit, condition, self._generator)
        empty = given.X.new_empty(0, given.X.shape[1], dtype=torch.float64)
        self._pending, self._failed = empty, empty
        self._began = time.monotonic()
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        if self._checkpoint is not None and self._checkpoint.exists():
            self._restore(files.read(self._checkpoint))

    @property
    def gp(self) -> GP:
        """The model."""
        return self._model.gp

    @property
    def X(self) -> Array:
        """Inputs with finite values (n, d)."""
        return self._kind.to_caller(self._model.X if len(self._model.y) else self._pending[:0])

    @property
    def y(self) -> Array:
        """Their values (n,)."""
        return self._kind.to_caller(self._model.y)

    @property
    def pending(self) -> Array:
        """Inputs that were asked for and have no value yet (m, d), after a crash too."""
        return self._kind.to_caller(self._pending)

    @property
    def best(self) -> Best:
        """The observation with the largest value, or the smallest for ``minimise``."""
        if not len(self._model.y):
            raise ValueError("there are no values yet: call tell first")
        place = self._model.y.argmin() if self.minimise else self._model.y.argmax()
        return Best(self._kind.to_caller(self._model.X[place]), float(self._model.y[place]))

    def ask(self, count: int) -> Array:
        """Return inputs to evaluate (count, d): the maxima of ``count`` paths, without repetitions.

        They stay `pending` until `tell` gets their values. Fewer rows, with a warning, if the candidates are exhausted.
        """
        count = whole_number(count, "count", 1)
        if self._candidates is not None:
            count = self._limit(count)
        X = self._random(count) if not len(self._model.y) else self._maxima(count)
        self._pending = torch.cat([self._pending, X])
        self._save()
        return self._kind.to_caller(X)

    def tell(self, X: Array, y: Array) -> None:
        """Add values y (m,) of the inputs X (m, d), asked for or not.

        Values that are not finite are failures: they are counted, kept out of the model, and not asked for again.
        """
        inputs = read_matrix(X, "X", columns=len(self.domain.lower)).X.detach().to(self._pending)
        values = torch.as_tensor(y).detach().to(self._pending)
        if values.shape != inputs.shape[:1]:
            raise ValueError(f"y must have shape ({len(inputs)},), one value per row of X, got {tuple(values.shape)}")
        finite = torch.isfinite(values)
        if failures := int((~finite).sum()):
            warnings.warn(
                f"{failures} of {len(values)} values are not finite: they are kept as failures, outside of the model",
                stacklevel=levels_to_the_caller(),
            )
        self._model.add(inputs[finite], values[finite])
        self._failed = torch.cat([self._failed, inputs[~finite]])
        told = set(self.domain.keys(inputs))
        waiting = [key not in told for key in self.domain.keys(self._pending)]
        self._pending = self._pending[torch.tensor(waiting, dtype=torch.bool)]
        if len(self._model.y):
            self._record(values[finite], failures)
        self._save()

    @property
    def posterior(self) -> Posterior | None:
        """The posterior of the last `ask`; None before the first one that used a model."""
        return self._model.last

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
        state = f"{len(self._model.y):,} evaluations in {len(self.history)} rounds"
        best = f", best {self.best.y:.6g}" if len(self._model.y) else ""
        failed = f", {len(self._failed)} failed" if len(self._failed) else ""
        return f"ThompsonSampler({state}{best}, {len(self._pending)} pending{failed})"

    def _known(self) -> Tensor:
        """All inputs that must not be asked for again."""
        told = self._model.X.to(self._pending) if len(self._model.y) else self._pending[:0]
        return torch.cat([told, self._failed, self._pending])

    def _maxima(self, count: int) -> Tensor:
        if len(self._pending):
            # The paths of the last call would have the same maxima.
            self._model.redraw()
        post = self._model.posterior(count)
        which = permutation(post.num_samples, self._generator, torch.device("cpu"))[:count]
        place: dict[str, Any] = {}
        if self._candidates is None:
            place["bounds"] = self._kind.to_caller(torch.stack([self.domain.lower, self.domain.upper]))
            place["choices"] = {column: values.tolist() for column, values in self.domain.choices.items()}
        else:
            place["candidates"] = self._kind.to_caller(self._candidates.X)
        options = {"constraint": self.domain.constraint, "minimise": self.minimise, "which": which, **self._search}
        known = self._kind.to_caller(self._known())
        X, _ = maximise_paths(post, **place, avoid=known, generator=self._generator, **options)
        X = torch.as_tensor(X).to(self._pending)
        known_keys = set(self.domain.keys(self._known()))
        if repeated := sum(key in known_keys for key in self.domain.keys(X)):
            warnings.warn(f"{repeated} of {count} inputs repeat earlier ones", stacklevel=levels_to_the_caller())
        return X

    def _random(self, count: int) -> Tensor:
        """Uniform inputs of the box, or random candidates."""
        if self._candidates is None:
            return self.domain.uniform(count, self._generator)
        rows = self._left()
        return self._candidates.X[rows[permutation(len(rows), self._generator, rows.device)[:count]]].to(self._pending)

    def _left(self) -> Tensor:
        """Numbers of the allowed candidates that were not asked for."""
        assert self._candidates is not None
        X = self._candidates.X
        known, allowed = set(self.domain.keys(self._known())), self.domain.allows(X)
        fresh = []
        for row, key in enumerate(self.domain.keys(X)):
            if key not in known and bool(allowed[row]):
                fresh.append(row)
                known.add(key)
        return torch.tensor(fresh, dtype=torch.long, device=X.device)

    def _limit(self, count: int) -> int:
        left = len(self._left())
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
        self.history.rounds.append(Round(len(self._model.y), self.best.y, batch, failures, seconds))

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        content = {
            "pathgp thompson": FORMAT,
            "lower": self.domain.lower,
            "upper": self.domain.upper,
            "minimise": self.minimise,
            "X": self._model.X,
            "y": self._model.y,
            "pending": self._pending,
            "failed": self._failed,
            "fitted_rows": self._model.fitted_rows,
            "hyperparameters": dict(self.gp.state_dict()),
            "generator": self._generator.get_state(),
            # NaN, the best of a batch of failures, is not JSON.
            "rounds": torch.tensor([list(asdict(each).values()) for each in self.history.rounds], dtype=torch.float64),
            "seconds": time.monotonic() - self._began,
        }
        files.write(self._checkpoint, content)

    def _restore(self, content: dict[str, Any]) -> None:
        advice = "remove the file to start anew, or use another path"
        if content.get("pathgp thompson") != FORMAT:
            raise ValueError(f"{self._checkpoint} is not a checkpoint of a ThompsonSampler of this version: {advice}")
        same = all(torch.equal(content[name], getattr(self.domain, name).cpu()) for name in ("lower", "upper"))
        if not same or content["minimise"] != self.minimise:
            raise ValueError(f"{self._checkpoint} belongs to another problem: its bounds or minimise differ; {advice}")
        try:
            self.gp.load_state_dict(content["hyperparameters"])
        except RuntimeError as error:
            raise ValueError(f"{self._checkpoint} belongs to another model: {error}; {advice}") from error
        device = self._pending.device
        if len(content["y"]):
            self._model.add(content["X"].to(device), content["y"].to(device))
        self._model.fitted_rows = content["fitted_rows"]
        self._pending, self._failed = content["pending"].to(device), content["failed"].to(device)
        self._generator.set_state(content["generator"])
        self._began = time.monotonic() - content["seconds"]
        for evaluations, best, batch, failed, seconds in content["rounds"].tolist():
            self.history.rounds.append(Round(int(evaluations), best, batch, int(failed), seconds))
