"""The regressor of scikit-learn's kind."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
import reference
from pathgp import kernels
from pathgp.data.tabular import KERNELS

pytest.importorskip("sklearn", reason="the door to scikit-learn needs scikit-learn")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pathgp.sklearn import GPRegressor


@parametrize_with_checks([GPRegressor(steps=5)])  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore")
def test_estimator_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def data(n: int = 80, seed: int = 0) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(size=(n, 2))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * draw.standard_normal(n)


def test_predictions_are_those_of_the_model() -> None:
    X, y = data()
    Xs = data(20, 1)[0]
    model = GPRegressor(steps=60).fit(X, y)
    gp = pathgp.GP(kernels.Scale(kernels.Matern(2.5, np.ones(2)), 1.0), noise=0.1, standardise=True)
    gp.fit(X, y, steps=60, optimiser="lbfgs", estimator="exact", initialise="data")
    mean, std = model.predict(Xs, return_std=True)
    np.testing.assert_allclose(mean, gp.posterior.mean(Xs), atol=1e-6)
    np.testing.assert_allclose(std, gp.posterior.variance(Xs, method="solve") ** 0.5, atol=1e-6)
    mean, covariance = model.predict(Xs, return_cov=True)
    np.testing.assert_allclose(np.diag(covariance), std**2, atol=1e-8)
    noise = gp.posterior.noise_std
    np.testing.assert_allclose(model.predict(Xs, return_std=True, noise=True)[1], np.hypot(std, noise), atol=1e-6)
    with_noise = model.predict(Xs, return_cov=True, noise=True)[1]
    np.testing.assert_allclose(with_noise, covariance + noise**2 * np.eye(20), atol=1e-6)
    assert model.score(X, y) > 0.95
    assert model.log_marginal_likelihood() == pytest.approx(gp.posterior.log_marginal_likelihood().value, abs=1e-4)
    assert model.reports_[0].history
    draws = model.sample_y(Xs, 2000)
    assert draws.shape == (20, 2000)
    # Five standard errors of 20 means: a false alarm in 90,000 runs.
    assert (np.abs(draws.mean(1) - mean) < 5 * std / 2000**0.5).all()
    with pytest.raises(ValueError, match="not for both"):
        model.predict(Xs, return_std=True, return_cov=True)


def test_paths_are_functions() -> None:
    X, y = data()
    Xs = data(20, 1)[0]
    functions = GPRegressor(steps=5, random_state=0).fit(X, y).sample_paths(3)
    assert functions(Xs).shape == (3, 20)
    np.testing.assert_allclose(functions(Xs)[:, :7], functions(Xs[:7]), atol=1e-9)
    model = GPRegressor(steps=0, noise=0.2).fit(X, y)
    assert model.posteriors_[0].model.hyperparameters()["noise"] == pytest.approx(0.2)
    assert "0 steps: hyperparameters as given" in repr(model.reports_[0])
    with pytest.raises(ValueError, match="k must be between 1 and samples=64, got 65"):
        model.sample_paths(65)


def test_several_outputs() -> None:
    X, y = data()
    both = np.stack([y, -2 * y + 1], 1)
    model = GPRegressor(steps=10).fit(X, both)
    mean, std = model.predict(X[:5], return_std=True)
    assert mean.shape == std.shape == (5, 2)
    alone = GPRegressor(steps=10).fit(X, y).predict(X[:5])
    np.testing.assert_allclose(mean[:, 0], alone, atol=1e-8)
    np.testing.assert_allclose(mean[:, 1], 1 - 2 * alone, atol=0.05)
    assert model.predict(X[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert model.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert model.sample_paths(4)(X[:5]).shape == (4, 5, 2)


def test_related_outputs_are_one_process() -> None:
    """At fixed hyperparameters, against a dense process over pairs of rows and outputs; each output has its units."""
    X, y = data(40)
    units = np.array([1.0, 50.0, 0.02])
    Y = np.stack([y, np.cos(y), X[:, 0]], 1) * units + np.array([5.0, -100.0, 0.0])
    model = GPRegressor(kernel=kernels.Matern(1.5, 0.7), noise=0.3, outputs="related", standardise=True, steps=0)
    model.fit(X, Y)
    (post,) = model.posteriors_
    B = post.model.sides[1].covariance.detach()
    Z, Zs = ((A - X.mean(0)) / X.std(0) for A in (X, data(6, 1)[0]))
    K, cross, prior = (
        torch.kron(reference.matern(*map(torch.tensor, pair), 1.5, 0.7), B) for pair in ((Z, Z), (Zs, Z), (Zs, Zs))
    )
    # Standardised by column in the door, then as a whole in the model.
    spread = float(((Y - Y.mean(0)) / Y.std(0)).std())
    targets = torch.tensor((Y - Y.mean(0)) / Y.std(0) / spread).flatten()
    weights = torch.linalg.solve(K + 0.09 * torch.eye(len(K)), torch.cat([targets[:, None], cross.T], 1))
    expected = (cross @ weights[:, 0]).reshape(6, 3).numpy() * spread * Y.std(0) + Y.mean(0)
    mean, covariance = model.predict(data(6, 1)[0], return_cov=True)
    np.testing.assert_allclose((mean - expected) / units, 0.0, atol=5e-2)
    left = (prior - cross @ weights[:, 1:]).reshape(6, 3, 6, 3).diagonal(dim1=1, dim2=3).numpy()
    np.testing.assert_allclose(covariance / (spread * Y.std(0)) ** 2, left, atol=1e-6)
    std = model.predict(data(6, 1)[0], return_std=True)[1]
    np.testing.assert_allclose(std**2, covariance[np.arange(6), np.arange(6)], rtol=0.8)
    assert model.sample_y(X[:5], 7).shape == (5, 3, 7)
    paths = model.sample_paths(4)
    assert paths(X[:5]).shape == (4, 5, 3)
    np.testing.assert_allclose(paths(X[:5])[:, :2], paths(X[:2]))


@pytest.mark.parametrize("outputs", ["independent", "related"])
def test_the_likelihood_is_in_the_units_of_y(outputs: str) -> None:
    X, y = data(30)
    Y = np.stack([y, X[:, 1]], 1)
    model = GPRegressor(outputs=outputs, steps=0)
    found, scaled = (model.fit(X, Y * unit).log_marginal_likelihood() for unit in ([1.0, 1.0], [1000.0, 1.0]))
    assert found - scaled == pytest.approx(30 * np.log(1000.0), rel=1e-6)


def test_relations_between_outputs_are_learned() -> None:
    X, y = data(60)
    Y = np.stack([y, 3 - 2 * y], 1)
    model = GPRegressor(outputs="related", steps=20).fit(X, Y)
    B = model.posteriors_[0].model.sides[1].covariance.detach()
    assert float(B[0, 1] / (B[0, 0] * B[1, 1]) ** 0.5) < -0.5
    assert model.score(X, Y) > 0.9
    assert np.isfinite(model.log_marginal_likelihood())
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X[:4]), model.predict(X[:4]))
    with pytest.raises(ValueError, match="need y with several columns"):
        GPRegressor(outputs="related").fit(X, y)
    with pytest.raises(ValueError, match="initialise='subsets' is for tables"):
        GPRegressor(outputs="related", initialise="subsets").fit(X, Y)
    with pytest.raises(ValueError, match="outputs must be 'independent' or 'related', got 'both'"):
        GPRegressor(outputs="both").fit(X, y)


def test_pipelines_searches_clones_and_pickles() -> None:
    X, y = data()
    pipeline = make_pipeline(StandardScaler(), GPRegressor(steps=3, standardise=False))
    search = GridSearchCV(pipeline, {"gpregressor__kernel": ["matern-1/2", kernels.Matern(2.5)]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5
    model = GPRegressor(kernel=kernels.Matern(1.5, 0.5), steps=3).fit(X, y)
    assert repr(clone(model)) == repr(model)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X[:4]), model.predict(X[:4]))
    np.testing.assert_array_equal(again.sample_paths(2)(X[:4]), model.sample_paths(2)(X[:4]))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_by_name(name: str) -> None:
    X, y = data(30)
    assert GPRegressor(kernel=name, steps=3).fit(X, y).score(X, y) > 0.5


def test_known_noise_and_wrong_names() -> None:
    X, y = data(30)
    noise = np.full(30, 0.1)
    noise[0] = 100.0
    y[0] = 50.0
    model = GPRegressor(steps=10, standardise=False).fit(X, y, noise=noise)
    assert abs(model.predict(X[:1])[0]) < 5
    for kernel in ("rbf", ["rbf"]):
        with pytest.raises(ValueError, match="kernel must be a pathgp kernel or one of 'squared-exponential'"):
            GPRegressor(kernel=kernel).fit(X, y)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fit", "error", "words"),
    [
        (lambda X, Y: GPRegressor(device="gpu").fit(X, Y), ValueError, "device must be .* got 'gpu'"),
        (lambda X, Y: GPRegressor(device="cuda:99").fit(X, Y), ValueError, "device must be .* got 'cuda:99'"),
        (lambda X, Y: GPRegressor(outputs="related").fit(X, Y, noise=0.1), ValueError, r"noise must have shape \(9,\)"),
        (lambda X, Y: GPRegressor(outputs="related").fit(X, Y, noise=X), ValueError, r"noise must have shape \(9,\)"),
        (lambda X, Y: GPRegressor().fit(X, Y[:, 0].astype(str)), ValueError, "y must hold numbers, got dtype <U"),
        (lambda X, Y: GPRegressor().fit(X, ["a", None] + 7 * [1.0]), ValueError, "could not convert string to float"),
        (lambda X, Y: GPRegressor(steps=0).fit(X, Y).predict(X, noise=0.1), TypeError, "noise must be True or False"),
        (lambda X, Y: GPRegressor(steps=0).fit(X, Y).sample_paths(2.5), TypeError, "k must be a whole number"),
    ],
)
def test_mistakes(fit: Any, error: type[Exception], words: str) -> None:
    X, y = data(9)
    with pytest.raises(error, match=words):
        fit(X, np.stack([y, -y], 1))


def test_frames_that_are_no_tables() -> None:
    pd = pytest.importorskip("pandas")
    X, y = data(9)
    with pytest.raises(ValueError, match="X has no columns"):
        GPRegressor().fit(pd.DataFrame(index=range(9)), y)
    with pytest.raises(ValueError, match="two columns have the name 'a'"):
        GPRegressor().fit(pd.DataFrame(X, columns=["a", "a"]), y)
    with pytest.raises(TypeError, match="column 'a' holds objects"):
        GPRegressor().fit(pd.DataFrame({"a": [[1, 2]] * 9}), y)
    model = GPRegressor(steps=0).fit(pd.DataFrame(X, columns=["a", "b"]), y)
    with pytest.raises(ValueError, match="column 'b' holds text and held numbers at the fit"):
        model.predict(pd.DataFrame({"a": [0.1], "b": ["x"]}))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_text(library: str) -> None:
    frames = pytest.importorskip(library)
    X, y = data(60)
    city = np.array(["Bath", "Cambridge", "York"])[np.arange(60) % 3]
    frame = frames.DataFrame({"a": X[:, 0], "city": city, "b": X[:, 1]})
    y = y + 3.0 * (city == "York")
    model = GPRegressor(steps=20).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "city", "b"]
    assert model.n_features_in_ == 3
    assert model.categories_ == {"city": ["Bath", "Cambridge", "York"]}
    assert model.score(frame, y) > 0.95
    one_hot = np.stack([X[:, 0], *(city == name for name in ("Bath", "Cambridge", "York")), X[:, 1]], 1)
    np.testing.assert_allclose(model.predict(frame), GPRegressor(steps=20).fit(one_hot, y).predict(one_hot), atol=1e-8)
    other = frames.DataFrame({"a": [0.1], "city": ["Oxford"], "b": [0.2]})
    with pytest.raises(ValueError, match="column 'city' has 'Oxford' in row 0, which is none of its categories"):
        model.predict(other)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frames.DataFrame({"b": [0.1], "city": ["York"], "a": [0.2]}))
    with pytest.raises(ValueError, match="column 'city' has no value in row 1"):
        GPRegressor().fit(frames.DataFrame({"a": [0.1, 0.2], "city": ["York", None]}), [0.0, 1.0])


def test_objects_that_are_numbers_are_numbers() -> None:
    """A column of dtype object may hold numbers, such as the Decimal of a database: no categories."""
    pd = pytest.importorskip("pandas")
    X, y = data(30)
    whole = np.arange(30) % 4
    numbers = pd.DataFrame({"a": X[:, 0], "b": whole.astype(float)})
    expected = GPRegressor(steps=2).fit(numbers, y).predict(numbers)
    for values in ([int(value) for value in whole], [Decimal(int(value)) for value in whole]):
        frame = pd.DataFrame({"a": X[:, 0], "b": pd.Series(values, dtype=object)})
        model = GPRegressor(steps=2).fit(frame, y)
        assert model.categories_ == {}
        np.testing.assert_array_equal(model.predict(frame), expected)
        np.testing.assert_array_equal(model.predict(numbers), expected)
    # Beside a column of text, and with more different values than categories may have.
    frame = pd.DataFrame({"a": pd.Series(list(X[:, 0]), dtype=object), "city": ["Bath", "York"] * 15})
    assert GPRegressor(steps=0).fit(frame, y).categories_ == {"city": ["Bath", "York"]}
    mixed = pd.DataFrame({"a": X[:, 0], "b": pd.Series([1, "two"] * 15, dtype=object)})
    assert GPRegressor(steps=0).fit(mixed, y).categories_ == {"b": [1, "two"]}


def test_many_rows_go_through_samples() -> None:
    X, y = data(1100)
    model = GPRegressor(steps=3, samples=16, random_state=0).fit(X, y)
    _, std = model.predict(X[:50], return_std=True)
    exact = model.posteriors_[0].variance(X[:50], method="solve") ** 0.5
    assert np.abs(std / exact - 1).mean() < 0.2
    assert model.score(X, y) > 0.9


def test_columns_that_are_no_inputs() -> None:
    pd = pytest.importorskip("pandas")
    X, y = data(150)
    times = pd.date_range("2000-01-01", periods=150, tz="UTC").to_series(index=range(150))
    frame = pd.DataFrame({"a": X[:, 0], "t": times})
    with pytest.raises(ValueError, match="column 't' has times with a zone"):
        GPRegressor().fit(frame, y)
    frame["t"] = times.dt.tz_convert(None)
    frame.loc[3, "t"] = pd.NaT
    with pytest.raises(ValueError, match="column 't' has no time in row 3"):
        GPRegressor().fit(frame, y)
    frame["t"] = [f"id {i}" for i in range(150)]
    with pytest.raises(ValueError, match="column 't' holds text, 150 different values such as 'id 0'"):
        GPRegressor().fit(frame, y)
