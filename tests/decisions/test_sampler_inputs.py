"""What a sampler accepts, returns and refuses, before anything is evaluated or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from optimisations import BOX, SMALL, hill, sampler, seeded
from pathgp import kernels
from pathgp.decisions import ThompsonSampler, maximise_paths, read_evaluations


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_returns_copies(kind: Any) -> None:
    optimiser = sampler(kind(BOX))
    X = optimiser.ask(4)
    optimiser.tell(X, hill(X))
    optimiser.ask(2)
    for read in (lambda: optimiser.X, lambda: optimiser.y, lambda: optimiser.pending, lambda: optimiser.best.X):
        before = np.asarray(read()).copy()
        changed = read()
        changed *= 0
        np.testing.assert_array_equal(np.asarray(read()), before)


def test_candidates_are_copied() -> None:
    candidates = torch.rand(10, 2, generator=seeded(), dtype=torch.float64)
    optimiser = ThompsonSampler(pathgp.GP(kernels.Matern(2.5, 0.5)), candidates=candidates, generator=seeded())
    candidates *= 0
    assert len(np.unique(np.asarray(optimiser.ask(10)), axis=0)) == 10


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_candidates_differ_in_any_units(unit: float) -> None:
    candidates = torch.rand(50, 2, generator=seeded(), dtype=torch.float64)
    # The second column is constant.
    candidates = torch.stack([unit * candidates[:, 0], candidates[:1, 1].expand(50)], 1)
    optimiser = sampler(None, candidates=candidates)
    X = optimiser.ask(20)
    assert len(X.unique(dim=0)) == 20
    optimiser.tell(X, X[:, 0] / unit)
    assert len(torch.cat([X, optimiser.ask(30)]).unique(dim=0)) == 50
    assert not optimiser.domain.continuous.any()


def test_a_constraint_may_work_in_place() -> None:
    def is_allowed(X: Any) -> Any:
        X -= 0.5
        return X.sum(1) < 0.0

    candidates = torch.rand(10, 2, generator=seeded(), dtype=torch.float64)
    gp = pathgp.GP(kernels.Matern(2.5, 0.5))
    for optimiser in (
        sampler(constraint=is_allowed),
        ThompsonSampler(gp, candidates=candidates, constraint=is_allowed),
    ):
        X = np.asarray(optimiser.ask(3))
        assert (X >= 0.0).all()
        assert (X.sum(1) < 1.0).all()


def test_one_column_of_choices() -> None:
    optimiser = ThompsonSampler(pathgp.GP(kernels.Matern(2.5)), [[0.0], [3.0]], choices={0: [0, 1, 2, 3]})
    assert sorted(optimiser.ask(4)[:, 0].tolist()) == [0.0, 1.0, 2.0, 3.0]


def test_values_keep_their_digits() -> None:
    optimiser = sampler(torch.from_numpy(BOX))
    optimiser.tell([[0.1, 0.2], [0.3, 0.4]], [100000.123456789, 1e300])
    assert optimiser.y.tolist() == [100000.123456789, 1e300]


def test_values_of_a_series() -> None:
    pandas = pytest.importorskip("pandas")
    optimiser = sampler()
    optimiser.tell([[0.1, 0.2], [0.3, 0.4]], pandas.Series([1.0, 2.0], index=[7, 9]))
    assert optimiser.y.tolist() == [1.0, 2.0]


def test_rounded_inputs_are_no_longer_pending() -> None:
    optimiser = sampler(3.0 * BOX)
    X = optimiser.ask(50)
    optimiser.tell(np.round(X[:40], 6), hill(X[:40]))
    np.testing.assert_array_equal(optimiser.pending, X[40:])
    optimiser.tell(np.round(X[40:], 3), hill(X[40:]))
    assert len(optimiser.pending) == 10


@pytest.mark.parametrize(
    ("X", "y", "error", "words"),
    [
        ([[0.1, 0.2]], [None], TypeError, "y must be numeric"),
        ([[0.1, 0.2]], ["a"], TypeError, "y must be numeric"),
        ([[0.1, 0.2]], [1j], TypeError, "y must be real"),
        ([[0.1, 0.2]], torch.tensor([1j]), TypeError, "y must be real"),
        ([[0.1, 0.2]], [[1.0]], ValueError, r"use y\[:, 0\]"),
        ([[0.1, 0.2, 0.3]], [1.0], ValueError, "X has 3 columns, the bounds have 2"),
        (np.empty((0, 2)), [], ValueError, "X has no rows"),
    ],
)
def test_wrong_data(X: Any, y: Any, error: type[Exception], words: str) -> None:
    optimiser = sampler()
    with pytest.raises(error, match=words):
        optimiser.tell(X, y)
    assert not len(optimiser.history)
    with pytest.raises(TypeError, match="count must be a whole number, got True"):
        optimiser.ask(True)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"search": {"start": 3}}, TypeError, "'start'.*maximise_paths: .*starts"),
        ({"search": {"which": [0]}}, TypeError, "'which'.* is set for every call"),
        ({"search": [1]}, TypeError, "search is a dict"),
        ({"search": {"starts": 0}}, ValueError, "starts must be at least 1, got 0"),
        ({"search": {"proposals": "many"}}, TypeError, "proposals must be a whole number, got 'many'"),
        ({"search": {"steps": -1}}, ValueError, "steps must be at least 0, got -1"),
        ({"search": {"steps": 2.5}}, TypeError, "steps must be a whole number, got 2.5"),
        ({"search": {"explore": 1.5}}, ValueError, "explore is a share from 0 to 1, got 1.5"),
        ({"search": {"min_gain": -1.0}}, ValueError, "min_gain must not be negative, got -1.0"),
        ({"search": {"min_gain": np.nan}}, ValueError, "min_gain must be finite"),
        ({"search": {"learning_rate": 0}}, ValueError, "learning_rate must be positive, got 0.0"),
        ({"search": {"learning_rate": None}}, TypeError, "learning_rate must be a number"),
        ({"fit": {"step": 3}}, TypeError, "'step'.* of fit: .*steps"),
        ({"condition": {"generator": None}}, TypeError, "'generator'.* is set for every call"),
        ({"condition": {"sample": 3}}, TypeError, "'sample'.* of condition: .*samples"),
        ({"condition": {"features": 1}}, ValueError, "ask for more features"),
        ({"choices": {1: 0.5}}, TypeError, r"choices is a dict \{column: values\}"),
        ({"choices": {"x": [1]}}, TypeError, r"choices is a dict \{column: values\}"),
        ({"choices": [0, 1]}, TypeError, r"choices is a dict \{column: values\}"),
        ({"place": [[0.0, 0.0], [1.0, np.inf]]}, ValueError, "bounds must be finite$"),
        ({"place": [[0.0, np.nan], [1.0, 1.0]]}, ValueError, "bounds must be finite$"),
        ({"place": [(0, 1), (0, 1)]}, ValueError, r"bounds\.T$"),
        ({"place": [[0] * 3, [1] * 3]}, ValueError, "inputs of 3 columns: lengthscale has 2 entries"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sampler(options.pop("place", BOX), **options)


def test_wrong_candidates() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    gp, rows = pathgp.GP(kernels.Matern(2.5, 0.5)), np.eye(2)
    with pytest.raises(TypeError, match=r"toarray\(\), or screen"):
        ThompsonSampler(gp, candidates=sparse.csr_matrix(rows))
    with pytest.raises(ValueError, match="candidates have no rows"):
        ThompsonSampler(gp, candidates=rows[:0])
    with pytest.raises(ValueError, match="the constraint allows none"):
        ThompsonSampler(gp, candidates=rows, constraint=lambda X: X[:, 0] > 2).ask(1)


class Plain(kernels.Kernel):
    """A kernel without random features."""

    def _matrix(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.cdist(X, Z))


def test_models_without_paths() -> None:
    with pytest.raises(ValueError, match="Plain has no random features"):
        ThompsonSampler(pathgp.GP(Plain()), BOX)
    with pytest.raises(TypeError, match=r"use pathgp\.GP\(Matern"):
        ThompsonSampler(kernels.Matern(2.5), BOX)  # type: ignore[arg-type]
    post = pathgp.GP(kernels.Matern(2.5, 0.5)).condition(np.eye(2), [0.0, 1.0], samples=0)
    with pytest.raises(ValueError, match="samples=0"):
        maximise_paths(post, BOX)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"which": []}, "which is empty"),
        ({"avoid": np.eye(3)}, "avoid has 3 columns"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"min_gain": -1.0}, "min_gain must not be negative"),
    ],
)
def test_wrong_options_of_a_search(options: dict[str, Any], words: str) -> None:
    post = pathgp.GP(kernels.Matern(2.5, 0.5)).condition(np.eye(2), [0.0, 1.0], samples=2, features=16)
    with pytest.raises(ValueError, match=words):
        maximise_paths(post, BOX, **options)


def test_choices_are_not_repeated() -> None:
    levels = {0: [0.0, 1.0, 2.0], 1: [0.0, 1.0, 2.0]}
    optimiser = sampler(choices=levels)
    asked = [optimiser.ask(4), optimiser.ask(2)]
    optimiser.tell(asked[0], hill(asked[0]))
    asked.append(optimiser.ask(3))
    assert len(np.unique(np.concatenate(asked), axis=0)) == 9
    with pytest.warns(UserWarning, match="2 of 2 inputs repeat earlier ones: no others were found"):
        assert optimiser.ask(2).shape == (2, 2)


def test_choices_with_a_constraint_are_not_repeated() -> None:
    optimiser = sampler(choices={0: [0.0, 1.0], 1: [0.0, 1.0, 2.0]}, constraint=lambda X: X.sum(1) < 2.5)
    assert len(np.unique(optimiser.ask(5), axis=0)) == 5


def test_more_inputs_than_samples() -> None:
    optimiser = sampler(condition={"samples": 4, "features": 64})
    X = optimiser.ask(8)
    optimiser.tell(X, hill(X))
    assert optimiser.ask(8).shape == (8, 2)


def test_one_input_at_a_time() -> None:
    """The variance of one path is not defined: a value does not contradict it."""
    optimiser = sampler(refit=2.0, fit={"steps": 1}, condition={"samples": 1, "features": 16})
    for _ in range(6):
        X = optimiser.ask(1)
        optimiser.tell(X, hill(X))
    assert len(optimiser.y) == 6


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (kernels.Matern(0.5, [0.5, 0.5]), r"is GP\(1\^2 \* Matern\(nu=2\.5.*here it is GP\(1\^2 \* Matern\(nu=0\.5"),
        (kernels.Matern(2.5, 0.5), "lengthscale=1"),
    ],
)
def test_another_model_does_not_continue(kernel: kernels.Kernel, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pathgp"
    first = sampler(checkpoint=path)
    X = first.ask(4)
    first.tell(X[:3], hill(X[:3]))
    with pytest.warns(UserWarning, match="not finite"):
        first.tell(X[3:], [np.nan])
    first.ask(2)
    gp = pathgp.GP(kernels.Scale(kernel, 0.123), 0.3)
    before = {name: value.clone() for name, value in gp.state_dict().items()}
    with pytest.raises(ValueError, match=words) as refusal:
        ThompsonSampler(gp, BOX, checkpoint=path)
    assert "read_evaluations" in str(refusal.value)
    assert "state_dict" not in str(refusal.value)
    assert all(torch.equal(before[name], value) for name, value in gp.state_dict().items())
    # The evaluations continue with the new model.
    X, y, pending = read_evaluations(path)
    other = ThompsonSampler(gp, BOX, checkpoint=tmp_path / "other.pathgp")
    with pytest.warns(UserWarning, match="1 of 4 values"):
        other.tell(X, y)
    np.testing.assert_array_equal(other.X, first.X)
    np.testing.assert_array_equal(other.y, first.y)
    np.testing.assert_array_equal(pending, first.pending)
    assert "1 failed" in repr(other)


class Steps(torch.nn.Module):
    """A mean whose description does not show how many parameters it has."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.heights = torch.nn.Parameter(torch.zeros(count, dtype=torch.float64))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.heights[(X[:, 0] * len(self.heights)).long().clamp(0, len(self.heights) - 1)]


def test_shapes_of_the_hyperparameters_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.pathgp"
    small, large = (pathgp.GP(kernels.Matern(2.5, 0.5), mean=Steps(count)) for count in (2, 3))
    ThompsonSampler(small, BOX, checkpoint=path).ask(1)
    with pytest.raises(ValueError, match=r"shapes of its hyperparameters are .*\(2,\).*, here .*\(3,\)"):
        ThompsonSampler(large, BOX, checkpoint=path)


def test_a_refused_sampler_leaves_the_model(tmp_path: Path) -> None:
    path = tmp_path / "run.pathgp"
    sampler(checkpoint=path).ask(2)
    gp = pathgp.GP(kernels.Matern(2.5, 0.5), standardise=True)
    with pytest.raises(ValueError, match="another problem"):
        ThompsonSampler(gp, BOX, checkpoint=path)
    assert gp.mean == 0.0
    ThompsonSampler(gp, BOX)
    assert isinstance(gp.mean, pathgp.means.Constant)


@pytest.mark.parametrize("kind", ["exact", "inducing", "learned points"])
def test_a_fitted_model_continues(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pathgp"
    samplers = []
    for _ in range(2):
        gp = pathgp.GP(kernels.Matern(2.5, [0.5, 0.5]), standardise=True)
        if kind != "exact":
            is_learned = kind == "learned points"
            gp = pathgp.InducingGP(gp.kernel, standardise=True, inducing=4, learn_inducing=is_learned)
        gp.constrain("noise", fixed=True)
        samplers.append(ThompsonSampler(gp, BOX, checkpoint=path, fit={"steps": 2}, search=SMALL, generator=seeded()))
        X = samplers[-1].ask(6)
        samplers[-1].tell(X, hill(X))
        # A fit, after which an `InducingGP` keeps its points.
        X = samplers[-1].ask(3)
        samplers[-1].tell(X, hill(X))
    first, second = samplers
    np.testing.assert_array_equal(second.X[:9], first.X)
    assert len(second.y) == 18


def test_page_after_one_round(tmp_path: Path) -> None:
    optimiser = sampler()
    optimiser.tell([[0.5, 0.5], [0.2, 0.2]], [1.0, 2.0])
    optimiser.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "One round so far" in page
    assert "The last round found" not in page
    assert "better than after the first round" not in page
