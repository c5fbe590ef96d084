"""The command line: from a file to a model to predictions, and one helpful line for everything that goes wrong."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from pathgp import GP, datasets, kernels, metrics, solvers
from pathgp.cli import fitting, main, output, tables
from pathgp.cli.arguments import _parser
from pathgp.columns import Columns

Capture = pytest.CaptureFixture[str]
ROWS = 150
SMALL = ["--steps", "15", "--samples", "8"]


def table(rows: int = ROWS) -> dict[str, list[Any]]:
    return {name: column[:rows].tolist() for name, column in datasets.example_table().items()}


def write(path: Path, columns: dict[str, list[Any]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(text: str | Path) -> dict[str, list[str]]:
    text = text.read_text() if isinstance(text, Path) else text
    titles, *rows = csv.reader(io.StringIO(text))
    return dict(zip(titles, map(list, zip(*rows, strict=True)), strict=True))


def numbers(columns: dict[str, list[str]], name: str) -> Any:
    return np.array(columns[name], dtype=float)


def matrix(columns: dict[str, list[Any]]) -> Any:
    named = Columns(["temperature", "light", "water", "soil"], {"soil": ["clay", "loam", "sand"]})
    return named.matrix(lambda name: np.array(columns[name]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table and the model of its growth column."""
    folder = tmp_path_factory.mktemp("cli")
    path = write(folder / "plants.csv", table())
    assert main(["fit", str(path), "--target", "growth", "--out", str(folder / "plants.pgp"), "--quiet", *SMALL]) == 0
    return folder


def fails(capsys: Capture, *arguments: Any, code: int = 1) -> str:
    """The one line that a command leaves on standard error when it fails."""
    assert main([str(argument) for argument in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# Fitting


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
    monkeypatch.setattr(datasets, "example_table", lambda: small)
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
    assert main([*fit, "--inputs", "light,temperature", "--noise", "0.3", "--holdout", "0"]) == 0
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
    assert "--skip-missing" in told
    assert main([*fit, "--skip-missing", "--out", str(tmp_path / "m")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["skipped_rows"]) == (37, 3)
    # The rows that are left are those that are complete.
    kept = [row for row in range(40) if row not in (2, 5, 7)]
    X = matrix({name: [column[row] for row in kept] for name, column in columns.items()})
    post = pathgp.load(tmp_path / "m")
    np.testing.assert_allclose(post._scaling.shift, X.mean(0))


def test_an_interrupted_fit_leaves_what_it_has(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "partial.pgp"
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--quiet", "--out", str(path)]

    def interrupted(gp: GP, X: Any, y: Any, options: Any) -> Any:
        def stop(step: Any) -> None:
            if step.step == 2:
                raise KeyboardInterrupt

        return gp.fit(X, y, samples=4, features=16, callback=stop)

    monkeypatch.setattr(fitting, "_learned", interrupted)
    assert f"interrupted: the model of the last whole step is in {path}" in fails(capsys, *fit, code=130)
    post = pathgp.load(path)
    assert post.about["stopped"] == "interrupted"
    assert main(["info", str(path)]) == 0
    told = capsys.readouterr().out
    assert "135 learned from, 15 held out" in told
    assert "learning       interrupted" in told

    def at_once(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "_learned", at_once)
    assert "interrupted: no file was written" in fails(capsys, *fit, code=130)


def test_an_unconverged_solve_is_said(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def hurried(gp: GP, X: Any, y: Any, options: Any) -> Any:
        return gp.fit(X, y, steps=2, samples=4, features=16, solver=solvers.CG(None), max_epochs=3.0)

    monkeypatch.setattr(fitting, "_learned", hurried)
    assert main(["fit", str(folder / "plants.csv"), "--target", "growth", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("pathgp: warning: ")
    result = json.loads(out)
    assert not result["converged"]
    assert result["status"] == "BUDGET_EXHAUSTED"


def test_precision_follows_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def data(offset: float) -> Any:
        X = np.random.default_rng(0).uniform(size=(20, 2)) + np.array([0.0, offset])
        return fitting._Data("a", Columns(["a", "time"]), "y", X, X[:, 0], 0)

    monkeypatch.setattr(fitting, "_DOUBLE_ROWS", 10)
    assert fitting._precision(None, data(0.0)) == (torch.float32, "")
    assert fitting._precision(None, data(1e5)) == (torch.float64, "float32 would blur 'time'")
    assert fitting._precision("float32", data(1e5))[0] is torch.float32
    monkeypatch.setattr(fitting, "_DOUBLE_ROWS", 20)
    assert fitting._precision(None, data(0.0))[0] is torch.float64


# Predicting


def test_predictions_are_those_of_the_posterior(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    new = {name: column[100:130] for name, column in table().items()}
    path = write(tmp_path / "new.csv", new)
    post, X = pathgp.load(folder / "plants.pgp"), matrix(new)
    predict = ["predict", str(folder / "plants.pgp"), str(path), "--quiet"]

    assert main(predict) == 0
    found = read(capsys.readouterr().out)
    assert list(found) == ["mean", "std"]
    np.testing.assert_allclose(numbers(found, "mean"), post.mean(X), rtol=1e-8)
    np.testing.assert_allclose(numbers(found, "std"), post.variance(X) ** 0.5, rtol=1e-8)

    assert main([*predict, "--interval", "0.8", "--noise", "--variance", "solve"]) == 0
    found = read(capsys.readouterr().out)
    std = post.variance(X, noise=True, method="solve") ** 0.5
    np.testing.assert_allclose(numbers(found, "std"), std, rtol=1e-6)
    np.testing.assert_allclose(numbers(found, "upper"), post.mean(X) + 1.2815515655 * std, rtol=1e-6)
    np.testing.assert_allclose(numbers(found, "lower"), post.mean(X) - 1.2815515655 * std, rtol=1e-6)

    assert main([*predict, "--variance", "none"]) == 0
    assert list(read(capsys.readouterr().out)) == ["mean"]

    out = tmp_path / "deep" / "p.csv"
    assert main([*predict[:-1], "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(numbers(read(out), "mean"), post.mean(X), rtol=1e-8)
    y, variance = np.array(new["growth"]), post.variance(X, noise=True)
    assert result["errors"]["rmse"] == pytest.approx(metrics.rmse(y, post.mean(X)))
    assert result["errors"]["nll"] == pytest.approx(metrics.nll(y, post.mean(X), variance))
    assert result["errors"]["coverage_95"] == pytest.approx(metrics.coverage(y, post.mean(X), variance))
    assert (result["rows"], result["skipped_rows"]) == (30, 0)


def test_one_command_from_a_table_to_predictions(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    """The same as fit and predict one after the other; what cannot work is told before the fit."""
    new = write(tmp_path / "new.csv", table(20))
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--predict", str(new), *SMALL]
    assert main([*fit, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["predictions"] == str(tmp_path / "new_predictions.csv")
    assert result["model"] is None
    assert result["predicted"]["rows"] == result["predicted"]["errors"]["rows"] == 20
    apart = tmp_path / "apart.csv"
    assert main(["predict", str(folder / "plants.pgp"), str(new), "--out", str(apart), "--quiet"]) == 0
    assert apart.read_text() == (tmp_path / "new_predictions.csv").read_text()
    assert main([*fit, "--predictions", str(tmp_path / "p.csv"), "--out", str(tmp_path / "m.pgp")]) == 0
    assert "20 rows in" in capsys.readouterr().err
    assert (tmp_path / "p.csv").read_text() == apart.read_text()
    write(new, {name: column for name, column in table(20).items() if name != "light"})
    assert "lacks light, which the model was fitted to" in fails(capsys, *fit)
    assert "is read by this command" in fails(capsys, *fit, "--predictions", new, code=2)
    assert "--predictions needs --predict" in fails(capsys, *fit[:4], "--predictions", apart, code=2)


def test_blocks_columns_and_samples(
    folder: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of seven rows, columns in another order, one more of them and no target."""
    new = {name: column[:50] for name, column in table().items() if name != "growth"}
    new = {"note": ['a "b", c'] * 50, **dict(reversed(new.items()))}
    path = write(tmp_path / "new.csv", new)
    post, X = pathgp.load(folder / "plants.pgp"), matrix(new)
    monkeypatch.setattr(tables, "ROWS", 7)
    assert main(["predict", str(folder / "plants.pgp"), str(path)]) == 0
    out, err = capsys.readouterr()
    np.testing.assert_allclose(numbers(read(out), "mean"), post.mean(X), rtol=1e-8)
    np.testing.assert_allclose(numbers(read(out), "std"), post.variance(X) ** 0.5, rtol=1e-6)
    assert "50 rows in" in err
    assert main(["sample", str(folder / "plants.pgp"), str(path), "--num", "3", "--quiet"]) == 0
    found = read(capsys.readouterr().out)
    assert list(found) == ["sample_1", "sample_2", "sample_3"]
    paths = post.paths(X)
    for i, name in enumerate(found):
        np.testing.assert_allclose(numbers(found, name), paths[i], rtol=1e-6, atol=1e-9)
    assert "holds 8 samples, --num 9" in fails(
        capsys, "sample", folder / "plants.pgp", path, "--num", 9, "--out", tmp_path / "s.csv"
    )
    assert not (tmp_path / "s.csv").exists()


def test_rows_with_missing_inputs_keep_their_place(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    new = {name: column[:5] for name, column in table().items()}
    whole = pathgp.load(folder / "plants.pgp").mean(matrix(new))
    new["light"][1], new["soil"][3], new["growth"][4] = "", "", ""
    path = write(tmp_path / "new.csv", new)
    assert "column 'light' has no value in line 3" in fails(
        capsys, "predict", folder / "plants.pgp", path, "--out", tmp_path / "p.csv"
    )
    assert not (tmp_path / "p.csv").exists()
    assert main(["predict", str(folder / "plants.pgp"), str(path), "--skip-missing"]) == 0
    out, err = capsys.readouterr()
    mean = read(out)["mean"]
    assert mean[1] == mean[3] == ""
    np.testing.assert_allclose([float(mean[i]) for i in (0, 2, 4)], whole[[0, 2, 4]], rtol=1e-8)
    assert "2 rows with missing inputs" in err
    assert "against 'growth' in the file" in err


def test_a_model_from_python_knows_no_names(capsys: Capture, tmp_path: Path) -> None:
    X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    post = GP(kernels.Matern(1.5, 0.5)).condition(X, X[:, 0], samples=0)
    post.save(tmp_path / "m")
    path = write(tmp_path / "new.csv", {"p": [0.1, 0.2], "q": [0.3, 0.4]})
    assert main(["predict", str(tmp_path / "m"), str(path), "--quiet"]) == 0
    expected = post.mean(np.array([[0.1, 0.3], [0.2, 0.4]]))
    np.testing.assert_allclose(numbers(read(capsys.readouterr().out), "mean"), expected, rtol=1e-8)
    path = write(tmp_path / "new.csv", {"q": [0.3, 0.4], "id": [1, 2], "p": [0.1, 0.2]})
    told = fails(capsys, "predict", tmp_path / "m", path)
    assert "without the names of its 2 columns, and new.csv has 3 columns" in told
    assert main(["predict", str(tmp_path / "m"), str(path), "--quiet", "--inputs", "p,q"]) == 0
    np.testing.assert_allclose(numbers(read(capsys.readouterr().out), "mean"), expected, rtol=1e-8)
    assert "--inputs has 1" in fails(capsys, "predict", tmp_path / "m", path, "--inputs", "p")
    assert main(["info", str(tmp_path / "m")]) == 0
    assert "Matern" in capsys.readouterr().out
    assert "made without samples" in fails(capsys, "sample", tmp_path / "m", path, "--inputs", "p,q")


def test_results_never_replace_what_is_read(folder: Path, capsys: Capture) -> None:
    model, path = folder / "plants.pgp", folder / "plants.csv"
    before = path.read_bytes(), model.read_bytes()
    assert "is read by this command" in fails(capsys, "predict", model, path, "--out", path, code=2)
    assert "is read by this command" in fails(capsys, "predict", model, path, "--out", model, code=2)
    assert "is read by this command" in fails(
        capsys, "fit", path, "--target", "growth", "--out", folder / "." / "plants.csv", code=2
    )
    assert (path.read_bytes(), model.read_bytes()) == before


def test_a_place_where_nothing_can_be_written_is_told_first(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_learned", None)  # what comes after the check
    fit = ["fit", folder / "plants.csv", "--target", "growth"]
    assert "is a folder" in fails(capsys, *fit, "--out", folder, code=2)
    assert "cannot be written: File exists" in fails(capsys, *fit, "--report", folder / "plants.csv" / "a", code=2)
    monkeypatch.setattr(output.os, "access", lambda *_: False)
    assert "no permission" in fails(capsys, *fit, "--out", folder / "m", code=2)


def test_info_is_what_fit_said(folder: Path, capsys: Capture) -> None:
    assert main(["info", str(folder / "plants.pgp")]) == 0
    table = capsys.readouterr().out
    assert "growth, from plants.csv" in table
    assert "held-out RMSE" in table
    assert main(["info", str(folder / "plants.pgp"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["target"] == "growth"
    assert f"{result['noise']:.4g}" in table
    assert set(result["lengthscales"]) == set(result["inputs"])


# Files


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_kinds_of_csv(delimiter: str, encoding: str, tmp_path: Path) -> None:
    columns = {"a b": ["1.5", " -2e3 ", ""], "text, \nlong": ['x "1"', "y\nz", "w; , |"]}
    found = tables.open_table(write(tmp_path / "a.csv", columns, delimiter, encoding))
    assert found.names == ["a b", "text, \nlong"]
    (block,) = found.blocks(found.names)
    np.testing.assert_array_equal(tables.numbers(block, "a b"), [1.5, -2000.0, np.nan])
    assert tables.texts(block, "text, \nlong").tolist() == columns["text, \nlong"]
    # Two lines of names, a cell of two lines.
    assert [block.place(row) for row in range(3)] == ["line 3", "line 4", "line 6"]
    assert found.done == 1.0


def test_constant_inputs_come_last(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path / "still.csv", table(60) | {"wind": [1.0] * 60})
    assert main(["fit", str(path), "--target", "growth", "--steps", "2", "--samples", "4"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-1].split() == ["wind", "is", "constant"]
    assert any("more --steps may find a better model" in line or line.strip() == "a better model" for line in lines)


def test_cycles_are_found_beyond_the_exact_rows(tmp_path: Path, capsys: Capture) -> None:
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 10, 1100)
    y = 12 * np.cos(2 * np.pi * x) + 0.5 * draw.standard_normal(1100)
    path = write(tmp_path / "cycle.csv", {"x": x.tolist(), "y": y.tolist()})
    assert main(["fit", str(path), "--target", "y", "--samples", "16", "--holdout", "0", "--json"]) == 0
    assert 0.4 < json.loads(capsys.readouterr().out)["noise"] < 0.6


def test_blank_lines_and_unnamed_columns(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n,x,y\n0,1,2\n\n1,3,4\n\n")
    found = tables.open_table(path)
    assert found.names == ["#1", "x", "y"]
    (block,) = found.blocks(["y", "x"])
    assert list(block.cells) == ["y", "x"]
    np.testing.assert_array_equal(tables.numbers(block, "x"), [1.0, 3.0])
    assert [block.place(row) for row in range(2)] == ["line 3", "line 5"]
    assert "column 1 of a.csv has no name" in fails(capsys, "fit", path, "--target", "y")


def test_parquet(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    from pyarrow import parquet

    columns = {**table(), "flag": [None, True] * (ROWS // 2)}
    path = tmp_path / "plants.parquet"
    parquet.write_table(pa.table(columns), path)
    model = folder / "plants.pgp"
    monkeypatch.setattr(tables, "ROWS", 64)
    assert main(["predict", str(model), str(path), "--quiet"]) == 0
    expected = pathgp.load(model).mean(matrix(table()))
    np.testing.assert_allclose(numbers(read(capsys.readouterr().out), "mean"), expected, rtol=1e-8)
    told = fails(capsys, "fit", path, "--target", "growth")
    assert "column 'flag' has no value in row 1, and 75 rows in all" in told
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'pathgp[parquet]'" in fails(capsys, "predict", model, path)


BAD: dict[str, tuple[Callable[[], str], str]] = {
    "empty": (lambda: "", "is empty"),
    "no rows": (lambda: "x,y\n", "has no rows"),
    "ragged": (lambda: "x,y\n1,2\n3\n", "line 3 of"),
    "twice": (lambda: "x,x,y\n1,2,3\n", "has 2 columns called 'x'"),
    "no header": (lambda: "1,2\n3,4\n", "--no-header"),
    "a typo": (lambda: "x,y\n1,2\n1.x,3\n2,4\n", "column 'x' holds numbers, but '1.x' in line 3"),
    "a target typo": (lambda: "x,y\n1,2\n1,3\n2,a\n", "column 'y' holds numbers, but 'a' in line 4"),
    "decimal commas": (lambda: "x;y\n1,5;2\n2,5;3\n", "column 'x' has '1,5' in line 2: write decimals with a point"),
    "infinite": (lambda: "x,y\n1,2\n-inf,3\n", "column 'x' is infinite in line 3"),
    "text target": (lambda: "x,y\n1,a\n2,b\n", "the target 'y' holds text"),
    "constant target": (lambda: "x,y\n1,2\n2,2\n3,2\n", "'y' is 2 in every row"),
    "one row": (lambda: "x,y\n1,2\n", "at least two are needed"),
    "names": (lambda: "x,y\n" + "".join(f"n{i},{i}\n" for i in range(150)), "--ignore x"),
    "no such column": (lambda: "x,z\n1,2\n", "--target: a.csv has no column 'y'. Its columns are x, z"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path, capsys: Capture) -> None:
    content, told = BAD[case]
    path = tmp_path / "a.csv"
    path.write_text(content())
    assert told in fails(capsys, "fit", path, "--target", "y", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_files_that_are_no_tables(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "latin.csv").write_bytes("höhe,y\n1,2\n".encode("latin-1"))
    assert "not text in UTF-8" in fails(capsys, "fit", tmp_path / "latin.csv", "--target", "y")
    assert "No such file" in fails(capsys, "fit", tmp_path / "absent.csv", "--target", "y")
    assert "is a folder or a pipe" in fails(capsys, "fit", tmp_path, "--target", "y")
    assert "is not a file that pathgp has saved" in fails(capsys, "info", folder / "plants.csv")
    assert "No such file" in fails(capsys, "predict", tmp_path / "absent.pgp", folder / "plants.csv")
    damaged = bytearray((folder / "plants.pgp").read_bytes())
    damaged[-9] ^= 1
    (tmp_path / "damaged.pgp").write_bytes(damaged)
    assert "is damaged" in fails(capsys, "predict", tmp_path / "damaged.pgp", folder / "plants.csv")


def test_a_file_that_does_not_go_with_the_model(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    model = folder / "plants.pgp"
    path = write(tmp_path / "a.csv", {"temperature": [1.0], "light": [2.0]})
    assert "a.csv lacks water, soil, which the model was fitted to" in fails(capsys, "predict", model, path)
    new = {name: column[:3] for name, column in table().items()}
    new["soil"][1] = "peat"
    path = write(tmp_path / "a.csv", new)
    assert "column 'soil' has 'peat' in line 3, which is none of its categories at the fit: 'clay', " in fails(
        capsys, "predict", model, path, "--out", tmp_path / "p.csv"
    )
    new["soil"][1], new["water"][2] = "clay", "wet"
    path = write(tmp_path / "a.csv", new)
    assert "column 'water' holds numbers, but 'wet' in line 4" in fails(
        capsys, "predict", model, path, "--out", tmp_path / "p.csv"
    )


# Usage and the rest


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit", "plants.csv"], "say which column to predict with --target: there are temperature, light"),
        (["fit", "plants.csv", "--target", "growth", "--inputs", "growth"], "cannot be an input and the target"),
        (["fit", "plants.csv", "--target", "growth", "--inputs", "light,light"], "names a column twice"),
        (["predict", "plants.pgp", "plants.csv", "--json"], "--json needs --out"),
        (["predict", "plants.pgp", "plants.csv", "--inputs", "light"], "leave out --inputs"),
        (["predict", "plants.pgp", "plants.csv", "--out", "p.parquet"], "written as CSV"),
        (["predict", "plants.pgp", "plants.csv", "--interval", "0.9", "--variance", "none"], "needs a variance"),
    ],
)
def test_usage(arguments: list[str], told: str, folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert told in fails(capsys, *arguments, code=2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit", "--kernel", "matern"], "invalid choice: 'matern'"),
        (["fit", "--holdout", "1.5"], "expected a share between 0 and 1, got '1.5'"),
        (["fit", "--steps", "-1"], "expected a whole number, 0 or more"),
        (["fit", "--nosie", "1"], "fit does not know --nosie"),
        (["fitt"], "invalid choice: 'fitt'"),
        (["predict", "m"], "required: FILE"),
    ],
)
def test_usage_of_argparse(arguments: list[str], told: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(arguments)
    assert exit_code.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_documented_commands_exist(page: str) -> None:
    text = (Path(__file__).parent.parent / page).read_text(encoding="utf-8")
    shell = "\n".join(re.findall(r"```shell\n(.*?)```", text, flags=re.DOTALL))
    commands = re.findall(r"^(?:\$ )?pathgp (\w.*)$", shell + "\n" + text, flags=re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        _, rest = _parser().parse_known_args(shlex.split(command, comments=True))
        assert rest == []


def test_devices_that_are_not_here(folder: Path, capsys: Capture) -> None:
    fit = ["fit", folder / "plants.csv", "--target", "growth"]
    assert "--device abc is not available here" in fails(capsys, *fit, "--device", "abc")
    if not torch.cuda.is_available():
        assert "--device cuda is not available here" in fails(capsys, *fit, "--device", "cuda")
        assert "--device h200" in fails(capsys, "plan", 1000, 3, "--device", "cuda")


def test_numbers_that_json_does_not_know(capsys: Capture) -> None:
    output.print_json({"a": [math.nan, 1.5], "b": {"c": (math.inf, None, "d", True)}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5], "b": {"c": [None, None, "d", True]}}


def test_plan_and_example(capsys: Capture, tmp_path: Path) -> None:
    assert main(["plan", "20000", "8"]) == 0
    assert "20,000 rows" in capsys.readouterr().out
    assert main(["plan", "20000", "8", "--device", "h200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 20000
    assert main(["example", "--out", str(tmp_path / "a.csv")]) == 0
    assert capsys.readouterr().out == ""
    found = read(tmp_path / "a.csv")
    np.testing.assert_array_equal(numbers(found, "growth"), datasets.load("example").y)
    assert main(["example"]) == 0
    assert capsys.readouterr().out == (tmp_path / "a.csv").read_text()


def test_bench(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    (benchmarks / "recording.py").write_text('"""No program."""\n')
    program = '"""Adds up.\n\nMore."""\nimport sys\nif __name__ == "__main__":\n    sys.exit(len(sys.argv))\n'
    (benchmarks / "adding.py").write_text(program)
    monkeypatch.setattr(pathgp, "__file__", str(tmp_path / "src" / "pathgp" / "__init__.py"))
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == "adding  Adds up.\n"
    assert main(["bench", "adding", "--quick", "1"]) == 3
    assert "no benchmark is called 'x': there are adding" in fails(capsys, "bench", "x")
    monkeypatch.setattr(pathgp, "__file__", str(tmp_path / "lib" / "python" / "pathgp" / "__init__.py"))
    assert "run this from a checkout" in fails(capsys, "bench")


def test_demo_has_its_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathgp import demo

    seen: list[Any] = []
    monkeypatch.setattr(demo, "main", lambda arguments: seen.append(arguments) or 0)
    assert main(["demo", "--points", "100", "--help"]) == 0
    assert seen == [["--points", "100", "--help"]]


def test_from_outside(folder: Path, tmp_path: Path) -> None:
    """As a process: the package imports no command, and a reader that leaves early is no error to tell of."""
    model, path = folder / "plants.pgp", folder / "plants.csv"
    code = "import sys, pathgp; sys.exit('pathgp.cli' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "pathgp.cli", "sample", str(model), str(path), "--quiet", "--num", "8"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")
