"""From a file to a model: what is learned, what is said about it, and what an interruption leaves."""

from __future__ import annotations

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pathgp
from cli_cases import ROWS, SMALL, Capture, fails, matrix, table, write
from pathgp import GP, metrics, solvers
from pathgp.cli import fitting, main, summary, training
from plain_fits import PLAIN


def test_fit_tells_and_saves(folder: Path, capsys: Capture) -> None:
    path = folder / "again.pgp"
    given = ["fit", str(folder / "plants.csv"), "--target", "growth", "--out", str(path), "--json", *SMALL]
    assert main(given) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert (result["rows"], result["held_out_rows"], result["skipped_rows"]) == (135, 15, 0)
    assert result["inputs"] == ["temperature", "light", "water", "soil=clay", "soil=loam", "soil=sand"]
    assert result["categories"] == {"soil": ["clay", "loam", "sand"]}
    assert result["converged"]
    assert result["steps"] <= 15

    post = pathgp.load(path)
    assert post.about["target"] == "growth"
    assert post.about["columns"] == ["temperature", "light", "water", "soil"]
    # The rows that were held out, and the errors on them.
    test = np.random.default_rng(0).permutation(ROWS)[:15]
    X, y = matrix(table())[test], np.array(table()["growth"])[test]
    mean, variance = post.mean(X), post.variance(X, noise=True)
    assert result["held_out"]["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert result["held_out"]["nll"] == pytest.approx(metrics.nll(y, mean, variance))
    assert result["held_out"]["coverage_95"] == pytest.approx(metrics.coverage(y, mean, variance))
    # Length scales and noise in the units of the table.
    std = np.delete(matrix(table()), test, 0).std(0)
    scales = post.model.kernel.kernel.lengthscale.detach().numpy() * std
    assert list(result["lengthscales"].values()) == pytest.approx(scales.tolist())
    assert result["noise"] == pytest.approx(float(post.model.noise) * np.delete(table()["growth"], test).std())
    assert 0.1 < result["noise"] < 0.6

    # The same seed gives the same model, another seed another.
    again = pathgp.load(folder / "plants.pgp")
    np.testing.assert_array_equal(again.paths(X), post.paths(X))
    assert main([*given, "--seed", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["noise"] != result["noise"]


def test_fit_warns_of_poor_predictions(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathgp.learning.restart._LARGEST_ERROR", 0.0)
    assert main(["fit", str(folder / "plants.csv"), "--target", "growth", "--quiet", *SMALL]) == 0
    err = capsys.readouterr().err
    assert err.startswith("pathgp: warning: predictions of left-out rows are worse than the average of y")
    assert err.endswith("transform growth or remove its outliers, or try another --kernel\n")
    assert err.count("warning") == 1


def test_fit_prints_a_table(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["fit", str(folder / "plants.csv"), "--target", "growth", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert all(len(line) <= 80 for line in out.splitlines())
    for told in ("135 learned from, 15 held out", "soil: clay, loam, sand (3, each", "held-out RMSE", "held-out NLL"):
        assert told in out
    for told in ("95 % coverage", "\nnoise ", "\nsolver ", "\nepochs ", "residual", "\nseconds ", "\ntemperature "):
        assert told in out


def test_fit_without_a_file_takes_the_example(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {name: np.array(column) for name, column in table(60).items()}
    monkeypatch.setattr(training, "example_table", lambda: small)
    assert main(["fit", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert "no file given: fitting the example data" in err
    assert "growth, from the example" in out
    assert "needs a file" in fails(capsys, "fit", "--target", "growth", code=2)


def test_the_page_is_about_the_held_out_rows(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    """The page itself is another matter: here is what it is told."""
    seen: dict[str, Any] = {}

    def to_html(post: Any, path: Any, **facts: Any) -> None:
        seen.update(facts, post=post, path=path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathgp.Posterior, "to_html", to_html, raising=False)
        fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--report", str(tmp_path / "a.html"), *SMALL]
        assert main(fit) == 0
        told = capsys.readouterr().out
        test = np.random.default_rng(0).permutation(ROWS)[:15]
        np.testing.assert_array_equal(seen["X_test"], matrix(table())[np.sort(test)])
        np.testing.assert_array_equal(seen["y_test"], np.array(table()["growth"])[np.sort(test)])
        assert (seen["path"], seen["target"]) == (tmp_path / "a.html", "growth")
        assert seen["names"] == ["temperature", "light", "water", "soil=clay", "soil=loam", "soil=sand"]
        assert len(seen["fit"].history) <= 15
        assert f"report in {tmp_path / 'a.html'}" in told
        assert main([*fit, "--holdout", "0"]) == 0
        assert seen["X_test"] is seen["y_test"] is None


def test_what_goes_in_can_be_chosen(folder: Path, capsys: Capture) -> None:
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--json", *SMALL]
    assert main([*fit, "--inputs", "light,temperature", "--noise-std", "0.3", "--holdout", "0"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["inputs"] == ["light", "temperature"]
    assert result["noise"] == pytest.approx(0.3)
    assert (result["rows"], result["held_out"]) == (ROWS, None)
    assert main([*fit, "--ignore", "soil,water", "--kernel", "matern-1/2", "--precision", "float32"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["inputs"] == ["temperature", "light"]
    assert (result["kernel"], result["precision"]) == ("matern-1/2", "float32")


def test_numbers_as_categories(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path / "a.csv", {"month": [1, 2, 10] * 5, "y": list(range(15))})
    assert main(["fit", str(path), "--target", "y", "--categorical", "month", "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["month=1", "month=10", "month=2"]


def test_missing_values_are_named_or_skipped(tmp_path: Path, capsys: Capture) -> None:
    columns = table(40)
    columns["light"][2], columns["soil"][5], columns["growth"][7] = "", "NA", "nan"
    path = write(tmp_path / "a.csv", columns)
    fit = ["fit", str(path), "--target", "growth", "--holdout", "0", "--json", *SMALL]
    told = fails(capsys, *fit)
    assert "column 'light' has no value in line 4, and 3 rows in all lack a value" in told
    assert "or leave such rows out with --skip-missing, or columns with --ignore" in told
    target = write(tmp_path / "b.csv", table(40) | {"growth": ["", *table(40)["growth"][1:]]})
    told = fails(capsys, "fit", target, "--target", "growth")
    assert told.endswith(
        "column 'growth' has no value in line 2: fill in what is missing, or leave such rows out with --skip-missing\n"
    )
    assert main([*fit, "--skip-missing", "--out", str(tmp_path / "m")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["skipped_rows"]) == (37, 3)
    # The rows that are left are those that are complete.
    kept = [row for row in range(40) if row not in (2, 5, 7)]
    X = matrix({name: [column[row] for row in kept] for name, column in columns.items()})
    post = pathgp.load(tmp_path / "m")
    np.testing.assert_allclose(post.scaling.shift, X.mean(0))


def test_an_interrupted_fit_leaves_what_it_has(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "partial.pgp"
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--quiet", "--out", str(path)]

    learn = GP.fit

    def interrupted(gp: GP, X: Any, y: Any, **_: Any) -> Any:
        def stop(step: Any) -> None:
            if step.step == 2:
                raise KeyboardInterrupt

        return learn(gp, X, y, **PLAIN, samples=4, features=16, callback=stop)

    monkeypatch.setattr(fitting.GP, "fit", interrupted)
    told = fails(capsys, *fit, code=130)
    assert f"interrupted: the model of the last whole step is in {path}" in told
    post = pathgp.load(path)
    assert ("do not rely on it" in told) is not post.report.solution.converged
    assert post.about["stopped"] == "interrupted"
    assert main(["info", str(path)]) == 0
    told = capsys.readouterr().out
    assert "135 learned from, 15 held out" in told
    assert "learning       interrupted" in told

    def at_once(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting.GP, "fit", at_once)
    assert "interrupted: no file was written; with --checkpoint FILE" in fails(capsys, *fit, code=130)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_the_same_command_continues_a_fit(
    stop: type[BaseException], folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, or SIGTERM, which the core turns into SystemExit: the rest of the steps, and the same model."""
    path, learn = tmp_path / "a fit.ckpt", GP.fit
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--checkpoint", str(path), *SMALL]

    def interrupted(gp: GP, X: Any, y: Any, **options: Any) -> Any:
        def end(step: Any) -> None:
            if step.step == 7:
                raise stop(143)

        return learn(gp, X, y, **options, callback=end)

    with monkeypatch.context() as patch:
        patch.setattr(fitting.GP, "fit", interrupted)
        with pytest.raises(SystemExit) if stop is SystemExit else nullcontext():
            assert main(fit) == 130
        told = capsys.readouterr().err
    assert f"interrupted: the fit is in {path}, continue it with: pathgp fit" in told
    assert shlex.split(told)[-len(fit) :] == fit

    taken: list[int] = []
    monkeypatch.setattr(GP, "fit", lambda *data, **how: learn(*data, **how, callback=lambda s: taken.append(s.step)))
    assert main([*fit, "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"continuing the fit in {path}" in err
    assert taken[0] == 8
    result, whole = json.loads(out), pathgp.load(folder / "plants.pgp")
    assert result["steps"] == whole.about["steps"] == 15
    assert result["checkpoint"] == str(path)
    assert result["held_out"] == whole.about["held_out"]
    assert "belongs to another fit: its data is" in fails(capsys, *fit, "--quiet", "--seed", "3")


def test_an_unconverged_solve_is_said(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = GP.fit

    def hurried(gp: GP, X: Any, y: Any, **_: Any) -> Any:
        choices = {"solver": solvers.CG(None), "max_epochs": 3.0}
        return learn(gp, X, y, **PLAIN, steps=2, samples=4, features=16, **choices)

    monkeypatch.setattr(fitting.GP, "fit", hurried)
    assert main(["fit", str(folder / "plants.csv"), "--target", "growth", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("pathgp: warning: ")
    result = json.loads(out)
    assert not result["converged"]
    assert result["status"] == "BUDGET_EXHAUSTED"


def test_a_solve_without_iterations_names_no_solver(folder: Path) -> None:
    facts = summary.describe(pathgp.load(folder / "plants.pgp"))
    assert "\nsolver         Cholesky; worst residual" in summary.format_summary(facts)
    told = summary.format_summary(facts | {"iterations": 0, "method": "Auto"})
    assert "\nsolver         none needed, the solutions of learning met tol; worst" in told
    told = summary.format_summary(facts | {"iterations": 0, "converged": False, "status": "BUDGET_EXHAUSTED"})
    assert "\nsolver         Cholesky, BUDGET_EXHAUSTED; worst" in told


def test_precision_follows_the_data(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model chooses the dtype; its messages name columns of X by number, those of the command by name."""
    draw = np.random.default_rng(0)
    a, time = draw.uniform(size=200), 1e9 + draw.uniform(size=200)

    def fit(far: float, *asked: str) -> list[str]:
        # An offset is subtracted before rounding; a row far away is not, and leaves no digits to the others.
        time[0] = 1e9 + far
        path = write(tmp_path / "t.csv", {"a": a.tolist(), "time": time.tolist(), "y": (10 * a).tolist()})
        return ["fit", str(path), "--target", "y", "--noise-std", "0.3", "--json", "--steps", "2", *asked]

    def precision(*arguments: Any) -> tuple[str, str]:
        assert main(fit(*arguments)) == 0
        result = json.loads(capsys.readouterr().out)
        return result["precision"], result["note"]

    monkeypatch.setattr("pathgp.learning.policy.FLOAT64_ROWS", 10)
    assert precision(0.5) == ("float32", "")
    assert precision(1e9) == ("float64", "float64, because float32 would blur column 'time'")
    assert precision(1e9, "--precision", "float64") == ("float64", "")
    told = fails(capsys, *fit(1e9, "--precision", "float32"))
    assert "float32 would blur or merge distinct values of column 'time': use float64" in told
    monkeypatch.setattr("pathgp.learning.policy.FLOAT64_ROWS", 200)
    assert precision(1e9) == ("float64", "")


def test_few_rows(tmp_path: Path, capsys: Capture) -> None:
    """What is said about few rows is right whether rows are held out or not."""
    path = write(tmp_path / "a.csv", {"x": [1.0, 2.0, 3.0], "y": [1.0, 1.0, 2.0]})
    fit = ["fit", str(path), "--target", "y"]
    told = fails(capsys, *fit, "--holdout", "0.7")
    assert "a.csv has 3 usable rows, 2 of them held out: at least two are needed to learn from, --holdout 0" in told
    told = fails(capsys, *fit, "--holdout", "0.4")
    assert "'y' is 1 in every row that is not held out: there is nothing to learn, --holdout 0 learns from all" in told
    assert main([*fit, "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    write(path, {"x": [1.0, 1.0, 1.0], "y": [1.0, 3.0, 2.0]})
    assert main([*fit, "--quiet", *SMALL]) == 0
    assert "every input is constant" in capsys.readouterr().err


def test_copies_of_rows_are_held_out_together(tmp_path: Path, capsys: Capture) -> None:
    """Copies on both sides would make the errors on the held-out rows far too small. The summary names the copies."""
    twice = {name: values * 2 for name, values in table(60).items()}
    path, out = write(tmp_path / "twice.csv", twice), tmp_path / "twice.pgp"
    assert main(["fit", str(path), "--target", "growth", "--holdout", "0.3", "--out", str(out), *SMALL]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of 84 rows repeat another one, inputs and target: if they are copies, remove them" in said
    learned = pathgp.load(out).X
    assert len(learned) == 84
    assert {int((learned == row).all(1).sum()) for row in learned} == {2}


@pytest.mark.parametrize(("number", "expected"), [(0, 0), (3, 2), (4, 4), (6, 6)])
def test_the_held_out_part_ends_between_copies(number: int, expected: int) -> None:
    rows, order = np.repeat([[3.0], [1.0], [2.0]], 2, 0), np.array([5, 0, 1, 2, 4, 3])
    test = training._hold_out(rows, order, number)
    # The order of the values is 2, 3, 1.
    assert test.tolist() == [value in [2.0, 3.0, 1.0][: expected // 2] for value in rows[:, 0]]


def test_constant_inputs_come_last(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path / "still.csv", table(60) | {"wind": [1.0] * 60})
    assert main(["fit", str(path), "--target", "growth", "--steps", "2", "--samples", "4"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-1].split() == ["wind", "is", "constant"]
    assert any("more --steps may find a better model" in line or line.strip() == "a better model" for line in lines)


@pytest.mark.parametrize("is_field", [False, True], ids=["pathwise", "vecchia"])
def test_cycles_are_found_beyond_the_exact_rows(
    is_field: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With estimated gradients, or those of Vecchia's likelihood, from 400 rows on in place of 1,000."""
    monkeypatch.setattr("pathgp.learning.fitting.VECCHIA_COLUMNS", 3 if is_field else 0)
    for name in ("policy.EXACT_ROWS", "policy.GUARD_ROWS", "guard.GUARD_ROWS"):
        monkeypatch.setattr(f"pathgp.learning.{name}", 400)
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 10, 440)
    y = 12 * np.cos(2 * np.pi * x) + 0.5 * draw.standard_normal(440)
    path = write(tmp_path / "cycle.csv", {"x": x.tolist(), "y": y.tolist()})
    assert main(["fit", str(path), "--target", "y", "--samples", "16", "--holdout", "0", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0.4 < result["noise"] < 0.6
    # Estimated gradients take epochs; the others do not.
    assert (result["fit_epochs"] > result["epochs"]) != is_field


def test_a_table_whose_first_steps_use_a_subset(tmp_path: Path) -> None:
    """1,200 rows: exact gradients on 1,000 rows first, then on all; the page knows the likelihood of the last steps."""
    X = np.random.default_rng(0).random((1200, 6))
    columns = {f"x{number}": column.tolist() for number, column in enumerate(X.T)} | {"y": X[:, 0].tolist()}
    path, page = write(tmp_path / "table.csv", columns), tmp_path / "page.html"
    chosen = ["--holdout", "0", "--steps", "4", "--samples", "4", "--quiet"]
    assert main(["fit", str(path), "--target", "y", *chosen, "--report", str(page)]) == 0
    assert "steps, those on all rows" in page.read_text()
