"""The page of a posterior says what is true, of any posterior, and is a sound document."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pathgp
from page_cases import EVIL, Page, check, page_of
from pathgp import GP, ConvergenceWarning, kernels, metrics
from pathgp.html import style
from pathgp.html.learning import fit_verdict
from pathgp.html.numbers import number
from pathgp.kernels.stationary import Stationary
from pathgp.posterior.table import Posterior


def data(n: int = 80, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    return X, np.sin(6 * X[:, 0]) + 0.1 * rng.normal(size=n)


def conditioned(kernel: kernels.Kernel, X: np.ndarray, y: np.ndarray, **options: object) -> Posterior:
    standardise = bool(options.pop("standardise", False))
    chosen = {"samples": 8, "features": 64, "generator": torch.Generator().manual_seed(0)} | options
    return GP(kernel, noise=0.1, standardise=standardise).condition(X, y, **chosen)


@pytest.fixture(scope="module")
def fitted() -> tuple[Posterior, pathgp.FitReport, np.ndarray, np.ndarray]:
    X, y = data(140)
    y[[100, 120]] += 1.0  # two outliers among the held-out rows
    gp = GP(kernels.Scale(kernels.Matern(1.5, torch.ones(3))), noise=0.3, standardise=True)
    report = gp.fit(X[:80], y[:80], steps=5, samples=8, features=64, generator=torch.Generator().manual_seed(0))
    return gp.posterior, report, X[80:], y[80:]


@pytest.fixture(scope="module")
def full(fitted: tuple, tmp_path_factory: pytest.TempPathFactory) -> Page:
    post, report, X, y = fitted
    return page_of(post, tmp_path_factory.mktemp("page"), X, y, ["fast", "slow", "still"], "height", report, "A title")


def test_a_full_page_is_sound_and_in_order(full: Page) -> None:
    check(full)
    assert [words for level, words in full.headings if level < 3] == [
        "A title",
        "Summary",
        "Accuracy and calibration",
        "Relevance of the inputs",
        "The function along each input",
        "Learning",
        "How it was computed",
    ]


def test_accuracy_is_that_of_the_metrics(full: Page, fitted: tuple) -> None:
    post, _, X, y = fitted
    mean, variance = post.mean(X), post.variance(X, noise=True)
    cells = full.words("td")
    assert number(metrics.rmse(y, mean)) in cells
    assert number(metrics.nll(y, mean, variance)) in cells
    assert f"{100 * metrics.coverage(y, mean, variance):.1f} %" in cells
    assert number(np.abs(y - mean).mean()) in cells
    assert number(1 - np.mean((y - mean) ** 2) / y.var()) in cells
    assert "on the 60 held-out rows" in full.text


def test_the_most_relevant_input_comes_first(full: Page) -> None:
    # A long length scale says nothing about the slope.
    assert "near zero it is nearly a straight line, steep or flat" in full.text
    described = dict(zip(full.words("title")[1:], full.words("desc"), strict=True))
    assert re.search(r"largest first: fast [\d.]+;", described["Relevance of the inputs"])
    assert "height along fast" in described


def test_learning_curves_name_what_was_learned(full: Page) -> None:
    described = dict(zip(full.words("title")[1:], full.words("desc"), strict=True))
    assert "noise" in described["Hyperparameters"]
    assert "in 5 steps" in described["Log marginal likelihood"]


@pytest.mark.parametrize(("per_step", "is_good"), [(0.01, False), (0.0005, True)])
def test_a_fit_that_ends_before_its_optimum_is_not_good(fitted: tuple, per_step: float, is_good: bool) -> None:
    report = fitted[1]
    history = [replace(step, gain=per_step * step.step * report.rows) for step in report.history]
    verdict = fit_verdict(replace(report, history=history))
    assert verdict.good == is_good
    assert ("still rising" in verdict.text) != is_good


def test_learned_values_have_units(full: Page) -> None:
    headings = full.words("th")
    assert headings.count("noise") == 1
    assert "In units of standard deviations" in headings[: headings.index("noise")]


def test_the_scatter_draws_every_row_once_and_those_outside_in_red(full: Page, fitted: tuple) -> None:
    dots = {str(path.get("class")): str(path["d"]).count("h0") for path in full.all("path")}
    post, _, X, y = fitted
    outside = 60 - round(60 * metrics.coverage(y, post.mean(X), post.variance(X, noise=True)))
    assert outside > 0
    assert (dots["dots data"], dots["dots warn"]) == (60 - outside, outside)


def test_effects_are_the_posterior_along_one_input_with_the_others_at_their_medians(full: Page, fitted: tuple) -> None:
    post, X = fitted[0], data(140)[0][:80]
    described = dict(zip(full.words("title")[1:], full.words("desc"), strict=True))["height along fast"]
    pattern = r"from (\S+) at fast = (\S+) to (\S+) at fast = (\S+); 95 % band of ±(\S+) to ±(\S+)\."
    numbers = [float(text.replace("−", "-")) for text in re.findall(pattern, described)[0]]
    line = np.tile(np.quantile(X, 0.5, axis=0, method="lower"), (61, 1))
    line[:, 0] = np.linspace(*np.quantile(X[:, 0], [0.005, 0.995]), 61)
    mean, half = post.mean(line), 1.96 * np.sqrt(post.variance(line))
    expected = [mean.min(), line[mean.argmin(), 0], mean.max(), line[mean.argmax(), 0], half.min(), half.max()]
    assert numbers == pytest.approx(expected, rel=0.01)


def test_names_are_text_and_not_markup(fitted: tuple, tmp_path: Path) -> None:
    post, report, X, y = fitted
    page = page_of(post, tmp_path, X, y, [EVIL, '" onload="alert(2)', "a & b"], EVIL, report, EVIL)
    check(page)
    assert page.words("h1") == [EVIL]
    assert EVIL not in page.markup
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_without_held_out_data_it_leaves_one_out(fitted: tuple, tmp_path: Path) -> None:
    post = fitted[0]
    page = page_of(post, tmp_path)
    check(page)
    assert "leave-one-out" in page.text
    loo = post.leave_one_out()
    assert number(-loo.mean_log_density) in page.words("td")


def test_many_rows_are_thinned_and_it_says_so(tmp_path: Path) -> None:
    X, y = data(30, 1)
    many = np.random.default_rng(1).uniform(size=(12_000, 1))
    page = page_of(conditioned(kernels.Matern(1.5, 0.3), X, y), tmp_path, many, np.sin(6 * many[:, 0]))
    check(page)
    assert "A random 10,000 of 12,000 rows were predicted" in page.text
    assert "1,500 of 10,000 rows are drawn" in page.text


@pytest.mark.parametrize("fit", ["none", "fixed noise", "learned"])
def test_advice_fits_the_origin_of_the_noise(fit: str, tmp_path: Path) -> None:
    """`condition` knows of no fit; a fit may have been given its noise, here ten times too small."""
    X, y = data(120, 1)
    gp = GP(kernels.Scale(kernels.Matern(1.5, 0.01)), noise=0.01)
    gp.constrain("lengthscale", fixed=True).constrain("noise", fixed=fit == "fixed noise")
    report = None if fit == "none" else gp.fit(X[:60], y[:60], steps=3, samples=2)
    post = gp.condition(X[:60], y[:60], samples=2) if report is None else gp.posterior
    # Errors ten times larger than the noise: narrow intervals in all three cases.
    mean, std = post.mean(X[60:]), np.sqrt(post.variance(X[60:], noise=True))
    text = page_of(
        post, tmp_path, X[60:], mean + 10.0 * std * np.random.default_rng(2).normal(size=60), fit=report
    ).text
    expected = {
        "none": "If the noise was not learned",
        "fixed noise": "The noise was given",
        "learned": "Look for outliers",
    }
    assert [words for words in expected.values() if words in text] == [expected[fit]]


class Bump(Stationary):
    """A squared exponential kernel whose spectral measure is not told: it has no features."""

    def profile(self, sq: Tensor, *shape: Tensor) -> Tensor:
        return sq.mul_(-0.5).exp_()


@pytest.mark.parametrize(
    ("kernel", "columns", "said"),
    [
        (kernels.Matern(1.5, 0.3), 1, "posterior of the function without noise"),
        (kernels.Matern(2.5, torch.full((90,), 5.0)), 90, "Left out: the 70 inputs with the smallest values"),
        (kernels.SquaredExponential(0.5), 3, "does not rank them"),
        (kernels.Linear(1.0, bias=1.0), 3, "linear kernel"),
        (kernels.Tanimoto(), 3, "Tanimoto kernel"),
        (Bump(0.5), 3, "joint samples"),
        (kernels.Periodic(0.5, 1.0, active_dims=[0]) + kernels.Linear(active_dims=[1]), 3, "Not ranked"),
    ],
    ids=["one input", "90 inputs", "one length scale", "linear", "tanimoto", "no features", "sum"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_kernel(kernel: kernels.Kernel, columns: int, said: str, dtype: type, tmp_path: Path) -> None:
    X, y = data(60, columns)
    page = page_of(conditioned(kernel, X.astype(dtype), y.astype(dtype)), tmp_path, X[:25], y[:25])
    check(page)
    assert re.search(said, page.text)


def test_tasks_are_shown_at_their_numbers(tmp_path: Path) -> None:
    X, y = data(60, 2)
    X[:, 1] = np.arange(60) % 3
    kernel = kernels.Matern(1.5, 0.5, active_dims=[0]) * kernels.Task(3, active_dims=[1])
    page = page_of(conditioned(kernel, X, y, standardise=True), tmp_path, names=["x", "task"])
    check(page)
    assert "y along task" in page.words("title")
    assert "kernel over 3 related tasks of task" in page.text


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_a_constant_target(level: float, tmp_path: Path) -> None:
    X, _ = data(40)
    y = np.full(40, level)
    page = page_of(conditioned(kernels.Matern(1.5, 0.5), X, y, standardise=True), tmp_path, X[:30], y[:30])
    check(page)
    assert "y is constant" in page.text


def test_without_samples(tmp_path: Path) -> None:
    X, y = data(40)
    page = page_of(conditioned(kernels.Matern(1.5, 0.5), X, y, samples=0), tmp_path)
    check(page)
    assert "8 joint samples" in page.text


def test_saved_without_data_it_says_what_is_missing(tmp_path: Path) -> None:
    X, y = data(40)
    conditioned(kernels.Matern(1.5, torch.ones(3)), X, y).save(tmp_path / "small.gp", data=False)
    post = pathgp.load(tmp_path / "small.gp")
    page = page_of(post, tmp_path)
    check(page)
    assert "saved without its targets" in page.text
    assert "Accuracy and calibration" not in page.text
    assert "Accuracy and calibration" in page_of(post, tmp_path, X, y).text


def test_a_solve_that_stopped_short_is_named_with_its_remedy(tmp_path: Path) -> None:
    X, y = data(60)
    with pytest.warns(ConvergenceWarning):
        post = conditioned(kernels.Matern(1.5, 0.3), X, y, solver="cg", tol=1e-6, max_epochs=3)
    page = page_of(post, tmp_path)
    check(page)
    assert "BUDGET_EXHAUSTED" in page.text
    assert "raise max_epochs" in page.text
    assert "which this posterior has not reached" in page.text


def test_the_recipe_repeats_the_posterior(tmp_path: Path) -> None:
    X, y = data(40)
    post = conditioned(kernels.Matern(1.5, 0.5), X, y, solver="cg", features=32)
    (recipe,) = page_of(post, tmp_path).words("pre")
    kernel = kernels.Matern(1.5, 0.5)
    scope = {"pathgp": pathgp, "torch": torch, "solvers": pathgp.solvers, "kernel": kernel, "X": X, "y": y}
    exec(recipe.replace("standardise=", "noise=0.1, standardise="), scope)
    assert np.array_equal(scope["post"].paths(X), post.paths(X))


def test_few_rows(tmp_path: Path) -> None:
    X, y = data(1)
    check(page_of(conditioned(kernels.Matern(1.5, 0.3), X, y), tmp_path))


@pytest.mark.parametrize(("inputs", "targets"), [(1e7, 1e9), (1e-7, 1e-9)])
def test_any_unit(inputs: float, targets: float, tmp_path: Path) -> None:
    X, y = data(60)
    post = conditioned(kernels.Matern(1.5, torch.ones(3)), X * inputs, y * targets, standardise=True)
    check(page_of(post, tmp_path))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"names": ["a", "b"]}, ValueError, "2 entries for 3 inputs"),
        ({"names": "abc"}, TypeError, "one name per input"),
        ({"X_test": np.zeros((2, 3))}, ValueError, "without y_test"),
        ({"y_test": np.zeros(2)}, ValueError, "without X_test"),
        ({"X_test": np.zeros((2, 4)), "y_test": np.zeros(2)}, ValueError, "X_test has 4 columns"),
        ({"X_test": np.zeros((2, 3)), "y_test": np.zeros(3)}, ValueError, "y_test must have shape"),
        ({"X_test": np.zeros((0, 3)), "y_test": np.zeros(0)}, ValueError, "no rows"),
        ({"fit": "yes"}, TypeError, "FitReport"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    arguments: dict[str, object], error: type[Exception], match: str, fitted: tuple, tmp_path: Path
) -> None:
    with pytest.raises(error, match=match):
        fitted[0].to_html(tmp_path / "page.html", **arguments)
    assert not (tmp_path / "page.html").exists()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_text_stands_out(colours: dict[str, str]) -> None:
    def contrast(a: str, b: str) -> float:
        low, high = sorted([luminance(colours[a]), luminance(colours[b])])
        return (high + 0.05) / (low + 0.05)

    for text in ("ink", "quiet", "accent", "good", "warn"):
        assert contrast(text, "paper") >= 4.5
        assert contrast(text, "panel") >= 4.5
    assert contrast("data", "paper") >= 3.0  # a graphic, not text


def test_every_colour_of_the_sheet_is_one_of_these() -> None:
    used = set(re.findall(r"var\(--(\w+)\)", style.SHEET))
    assert used == set(style.LIGHT) == set(style.DARK)
    assert not re.search(r"#[0-9a-f]{3,6}", style._RULES)


def test_every_class_has_a_rule(full: Page) -> None:
    used = {name for _, attributes in full.elements for name in str(attributes.get("class") or "").split()}
    plain = {"fact", "halo"} | {"verdicts"}
    assert {name for name in used - plain if f".{name}" not in style.SHEET} == set()


def test_the_documentation_runs_as_printed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)), "report.md", "exec"), scope)
    check(Page.read(Path(str(scope["page"]))))
