"""What a page is about: a posterior, and its data in the units and with the names of its user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pathgp.data.standardise import task_columns
from pathgp.html.accuracy import some
from pathgp.posterior.table import Posterior

# Rows that medians, quantiles and marks on axes are taken from.
_MOST_ROWS = 100_000
# An input with at most this many different values is shown at these values.
_MOST_LEVELS = 12


@dataclass(frozen=True)
class Subject:
    """A posterior with the names of its inputs and of its target."""

    post: Posterior
    names: list[str]
    target: str

    @property
    def rows(self) -> int:
        return self.post.report.rows

    @property
    def columns(self) -> int:
        return self.post.report.columns

    @property
    def has_targets(self) -> bool:
        return self.post.system.is_complete

    @property
    def has_paths(self) -> bool:
        return self.post.has_paths

    @property
    def has_factor(self) -> bool:
        """Whether exact covariances come from one Cholesky factor, not from a solve per row."""
        return self.post.has_factor

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in the units of y."""
        return self.post.noise_std

    @cached_property
    def chosen(self) -> NDArray[Any]:
        return some(self.rows, _MOST_ROWS)

    @cached_property
    def X(self) -> NDArray[np.float64]:
        """Rows of the training inputs in the caller's units, all or a random part."""
        X = self.post.system.X
        part = X[torch.from_numpy(self.chosen).to(X.device)].to(torch.float64)
        return self.post.scaling.restore_inputs(part).cpu().numpy()

    def targets(self) -> NDArray[np.float64]:
        """All training targets in the caller's units."""
        system, scaling = self.post.system.require_targets("the page"), self.post.scaling
        with torch.no_grad():
            mean = self.post.model.mean_at(self.post.X, exact=True)
            return scaling.restore(system.targets[:, 0], mean, torch.float64).cpu().numpy()

    @cached_property
    def medians(self) -> NDArray[np.float64]:
        """The lower median of every input, which is a value that occurs."""
        return np.quantile(self.X, 0.5, axis=0, method="lower")

    @cached_property
    def tasks(self) -> list[int]:
        """Columns that hold task numbers."""
        return task_columns(self.post.model.kernel, self.post.system.X[:1])

    def levels(self, column: int) -> NDArray[np.float64] | None:
        """The values of an input that has only a few, None for any other."""
        values = np.unique(self.X[:, column])
        few = len(values) <= _MOST_LEVELS and 4 * len(values) <= len(self.X)
        return values if few or column in self.tasks else None

    def along(self, column: int, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inputs (m, d) where one takes these values and all others their medians."""
        Xs = np.tile(self.medians, (len(values), 1))
        Xs[:, column] = values
        return Xs


def subject(post: Posterior, names: Sequence[str] | None, target: str | None) -> Subject:
    """Names checked, x0, x1, ... and y where there are none."""
    return Subject(post, read_names(names, post.report.columns, "input", "x"), "y" if target is None else str(target))


def read_names(names: Sequence[str] | None, number: int, what: str, default: str) -> list[str]:
    """One name for each of a number of inputs, or of whatever it is; by default they are numbered."""
    if isinstance(names, str):
        raise TypeError(f"names must be a list with one name per {what}, got the string {names!r}")
    found = [f"{default}{i}" for i in range(number)] if names is None else [str(name) for name in names]
    if len(found) != number:
        raise ValueError(f"names has {len(found)} entries for {number} {what}s: give one name per {what}")
    return found
