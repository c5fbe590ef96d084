"""The file of an optimisation: a sampler of the same problem continues from it, and any program can read its values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pathgp.compute import files
from pathgp.compute.inputs import Array
from pathgp.decisions.domain import Domain
from pathgp.learning.hyperparameters import description
from pathgp.models import GP

# Increase this number if earlier files cannot be continued.
FORMAT = 2

_WORDS = {"lower": "lower bound", "upper": "upper bound", "model": "model, if all it learns is 1,"}
_ADVICE = (
    "use another path, and pathgp.decisions.read_evaluations(path) for the evaluations in this file, which "
    "tell(X, y) of a new sampler accepts"
)


class Evaluations(NamedTuple):
    """Evaluated inputs X (n, d), their values y (n,) with NaN for failures, and inputs without a value yet (m, d)."""

    X: Array
    y: Array
    pending: Array


def read_evaluations(path: str | os.PathLike[str]) -> Evaluations:
    """Read inputs, values and pending inputs from the checkpoint of a `ThompsonSampler`, without its model.

    A new sampler with another model, or with other bounds, continues from them: ``sampler.tell(X, y)``. The arrays are
    of NumPy, float64. The order is that in which the values were told, failures last.
    """
    content = read(Path(path))
    failed = content["failed"]
    X = torch.cat([content["X"], failed]) if len(content["y"]) else failed
    y = torch.cat([content["y"], torch.full((len(failed),), torch.nan, dtype=torch.float64)])
    return Evaluations(*(tensor.numpy() for tensor in (X, y, content["pending"])))


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file."""
    files.write(path, {"pathgp thompson": FORMAT, **content})


def read(path: Path) -> dict[str, Any]:
    """The content of a file that `write` wrote; ValueError for any other file."""
    content = files.read(path, "pathgp thompson")
    if (number := content["pathgp thompson"]) != FORMAT:
        raise ValueError(f"{path} has checkpoint format {number}, this version writes {FORMAT}: use another path")
    return content


def describe_problem(domain: Domain, minimise: bool, model: GP) -> dict[str, Any]:
    """What must be the same when an optimisation continues; the values of hyperparameters may differ."""
    return {"lower": domain.lower, "upper": domain.upper, "minimise": minimise, "model": description(model)}


def require_same_problem(path: Path, content: dict[str, Any], problem: dict[str, Any], model: GP) -> None:
    """ValueError if the file belongs to other bounds, to the other direction or to another model.

    ``model``: a copy, which gets the hyperparameters in the file.
    """
    for name, value in problem.items():
        found = content.get(name)
        if isinstance(value, torch.Tensor):
            is_same = isinstance(found, torch.Tensor) and torch.equal(found, value.cpu())
            found, value = (None if x is None else x.tolist() for x in (found, value))
        else:
            is_same = found == value
        if not is_same:
            name = _WORDS.get(name, name)
            raise ValueError(f"{path} belongs to another problem: its {name} is {found}, here it is {value}; {_ADVICE}")
    # A description does not show how many parameters a mean of the caller has.
    state = content["hyperparameters"]
    try:
        model.load_state_dict(state)
    except RuntimeError:
        found, here = ({name: tuple(x.shape) for name, x in part.items()} for part in (state, model.state_dict()))
        raise ValueError(
            f"{path} belongs to another model: the shapes of its hyperparameters are {found}, here {here}; {_ADVICE}"
        ) from None
