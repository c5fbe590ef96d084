"""What is written down: any kernel, solver and words about it; what is not of pathgp is named and refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pathgp import GP, InducingGP, solvers
from pathgp import kernels as K
from pathgp.compute import files
from pathgp.io import saving
from pathgp.solvers.run import Run
from pathgp.solvers.solution import Solution
from saving_cases import BUDGET, again, grid_posterior, small, uniform

SCALES = st.floats(1e-3, 1e3)
DIMS = st.sampled_from([None, [0], [1], [1, 0]])
PER_COLUMN = st.one_of(SCALES, st.lists(SCALES, min_size=1, max_size=1).map(torch.tensor))


def _one_column(kernel: Callable[..., K.Kernel], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[K.Kernel]:
    return st.builds(kernel, *arguments, active_dims=st.sampled_from([[0], [1]]))


LEAVES = st.one_of(
    _one_column(K.SquaredExponential, PER_COLUMN),
    _one_column(K.Matern, st.floats(0.1, 10.0), PER_COLUMN),
    _one_column(K.RationalQuadratic, SCALES, PER_COLUMN),
    _one_column(K.Periodic, PER_COLUMN, PER_COLUMN),
    _one_column(K.Linear, PER_COLUMN, st.one_of(st.none(), SCALES)),
    _one_column(K.Task, st.integers(1, 5), st.integers(1, 3)),
    st.builds(K.Tanimoto, active_dims=DIMS),
    st.builds(K.Matern, st.sampled_from([0.5, 1.5, 2.5]), SCALES, active_dims=DIMS),
)


def _combined(inner: st.SearchStrategy[K.Kernel]) -> st.SearchStrategy[K.Kernel]:
    both = st.lists(inner, min_size=1, max_size=3)
    whole = st.sampled_from([None, [0, 1], [1, 0]])
    return st.one_of(
        st.builds(K.Scale, inner, SCALES, active_dims=whole),
        st.builds(lambda parts, dims: K.Sum(*parts, active_dims=dims), both, whole),
        st.builds(lambda parts, dims: K.Product(*parts, active_dims=dims), both, whole),
    )


@given(kernel=st.recursive(LEAVES, _combined, max_leaves=6), noise=SCALES)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_kernel_expression(kernel: K.Kernel, noise: float, tmp_path: Path) -> None:
    model = GP(kernel, noise)
    files.write(tmp_path / "file", {"model": saving.encode(model), "state": dict(model.state_dict())})
    content = files.read(tmp_path / "file")
    found = saving.decode(content["model"], torch.device("cpu"))
    assert repr(found) == repr(model)
    found.load_state_dict(content["state"])
    state = model.state_dict()
    assert list(found.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())


@pytest.mark.parametrize(
    "solver", [getattr(solvers, name)() for name in ("AP", "Auto", "CG", "Cholesky", "SDD", "SGD")]
)
def test_every_solver(solver: solvers.Solver) -> None:
    assert saving.decode(saving.encode(solver), torch.device("cpu")) == solver


@pytest.mark.parametrize("name", ["GridBlocks", "GridInverse", "PivotedCholesky", "RandomlyPivotedCholesky"])
def test_every_preconditioner(name: str) -> None:
    solver = solvers.CG(getattr(solvers, name)())
    assert saving.decode(saving.encode(solver), torch.device("cpu")) == solver


def test_what_is_said_about_it(tmp_path: Path) -> None:
    about = {"target": "°C", "columns": ["a", "b"], "$tensor": 0, "nested": {"$class": "GP", "n": [1, 2.5, None, True]}}
    posterior = small()
    assert posterior.about is None
    assert again(posterior, tmp_path / "post").about is None
    found = again(posterior, tmp_path / "post", about=about)
    assert found.about == about
    # Saving it once more does not lose it.
    assert again(found, tmp_path / "post", data=False).about == about
    grid = grid_posterior(2)
    assert again(grid, tmp_path / "post", about={"rows": "stations"}).about == {"rows": "stations"}


def test_an_update_keeps_what_is_said_about_it(tmp_path: Path) -> None:
    about = {"target": "height"}
    table = again(small(), tmp_path / "post", about=about)
    y = table.training_targets()
    assert table.update(table.X, y).about == about
    inducing = InducingGP(K.Matern(), inducing=4).condition(table.X, y, samples=0)
    assert again(inducing, tmp_path / "post", about=about).update(table.X, y).about == about
    grid = again(grid_posterior(), tmp_path / "post", about=about)
    Y = torch.ones(grid.data.observed.shape, dtype=torch.float64)
    assert grid.update(Y).about == about


@pytest.mark.parametrize(
    ("about", "error", "told"),
    [
        (["a"], TypeError, "about must be a dict"),
        ({1: "a"}, TypeError, "about has the key 1"),
        ({"a": {"b": [0, np.float64(1.0)]}}, TypeError, re.escape("about['a']['b'][1] is of float64")),
        ({"a": (1, 2)}, TypeError, re.escape("about['a'] is of tuple")),
        ({"a": float("nan")}, ValueError, re.escape("about['a'] is nan")),
    ],
)
def test_only_plain_things_are_said_about_it(about: Any, error: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=told):
        small().save(tmp_path / "post", about=about)
    assert not (tmp_path / "post").exists()


class Own(K.SquaredExponential):
    pass


class OwnSolver(solvers.Solver):
    def _solve(self, run: Run) -> Solution:
        return solvers.Cholesky()._solve(run)


class Slope(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return X[:, 0]


class OwnGP(GP):
    pass


def test_what_is_not_of_pathgp_is_named(tmp_path: Path) -> None:
    X = uniform(10)
    same_name = type("Matern", (K.Matern,), {})
    cases: list[tuple[GP, str | solvers.Solver, str]] = [
        (GP(Own() + K.Linear()), "auto", "an object of Own .*your own kernels and models"),
        (GP(same_name()), "auto", "an object of Matern .*your own kernels and models"),
        (OwnGP(K.Matern()), "auto", "an object of OwnGP .*your own kernels and models"),
        (GP(K.Matern()), OwnSolver(), "an object of OwnSolver .*one of pathgp's solvers"),
        (GP(K.Matern(), mean=lambda X: X[:, 0]), "auto", "the function .*lambda.*means.Constant"),
        (GP(K.Matern(), mean=Slope()), "auto", "an object of Slope .*means.Constant"),
    ]
    (tmp_path / "post").write_text("what was there before")
    for gp, solver, words in cases:
        with pytest.raises(TypeError, match=words):
            gp.condition(X, X[:, 0], solver=solver, **BUDGET).save(tmp_path / "post")
    assert (tmp_path / "post").read_text() == "what was there before"


@pytest.mark.parametrize(
    ("sentence", "fields"),
    [
        ("", ("", None, "")),
        ("high precision", ("high", None, "")),
        (
            "high precision: low would be off by 3 times the noise",
            ("high", None, "low would be off by 3 times the noise"),
        ),
        ("low precision, off by 1.2e-03", ("low", 1.2e-3, "")),
        (
            "low precision, off by 1.2e-03, then high: the rounds did not contract",
            ("low", 1.2e-3, "then high: the rounds did not contract"),
        ),
    ],
)
def test_solutions_of_earlier_files(sentence: str, fields: tuple[str, float | None, str]) -> None:
    """They describe the precision of products by one sentence, and do not name the method."""
    tree = saving.encode(small().report.solution)
    for name in ("method", "precision", "product_error", "precision_note"):
        del tree[name]
    tree |= {"products": sentence, "solver": "CG(preconditioner='auto')"}
    found = saving.decode(tree, torch.device("cpu"))
    assert (found.precision, found.product_error, found.precision_note) == fields
    assert found.method == "CG"


def test_grid_inverses_of_earlier_files() -> None:
    """They had a rank without a meaning."""
    tree = {"$class": "CG", "preconditioner": {"$class": "GridInverse", "rank": None}}
    assert saving.decode(tree, torch.device("cpu")) == solvers.CG(solvers.GridInverse())
