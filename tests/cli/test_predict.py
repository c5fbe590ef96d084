"""From a model to predictions and samples: those of the posterior, in the rows and columns of the file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pathgp
from cli_cases import SMALL, Capture, fails, matrix, numbers, read, table, write
from pathgp import GP, kernels, metrics
from pathgp.cli import main, tables


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

    out = tmp_path / "p.csv"
    assert main([*predict[:-1], "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(numbers(read(out), "mean"), post.mean(X), rtol=1e-8)
    y, variance = np.array(new["growth"]), post.variance(X, noise=True)
    assert result["errors"]["rmse"] == pytest.approx(metrics.rmse(y, post.mean(X)))
    assert result["errors"]["nll"] == pytest.approx(metrics.nll(y, post.mean(X), variance))
    assert result["errors"]["coverage_95"] == pytest.approx(metrics.coverage(y, post.mean(X), variance))
    assert (result["rows"], result["skipped_rows"]) == (30, 0)


def test_one_command_from_a_table_to_predictions(
    folder: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as fit and predict one after the other; what cannot work is told before the fit."""
    (tmp_path / "data").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    new = write(tmp_path / "data" / "new.csv", table(20))
    fit = ["fit", str(folder / "plants.csv"), "--target", "growth", "--predict", str(new), *SMALL]
    assert main([*fit, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["predictions"] == "new_predictions.csv"
    assert result["model"] is None
    assert result["predicted"]["rows"] == result["predicted"]["errors"]["rows"] == 20
    apart = tmp_path / "apart.csv"
    assert main(["predict", str(folder / "plants.pgp"), str(new), "--out", str(apart), "--quiet"]) == 0
    assert apart.read_text() == (tmp_path / "work" / "new_predictions.csv").read_text()
    options = ["--noise", "--interval", "0.9"]
    assert main([*fit, "--predictions", str(tmp_path / "p.csv"), "--out", str(tmp_path / "m.pgp"), *options]) == 0
    assert f"s, written to {tmp_path / 'p.csv'}" in capsys.readouterr().err
    assert main(["predict", str(folder / "plants.pgp"), str(new), "--out", str(apart), "--quiet", *options]) == 0
    assert (tmp_path / "p.csv").read_text() == apart.read_text()
    monkeypatch.setattr(GP, "fit", None)  # what comes after the checks
    write(new, {name: column for name, column in table(20).items() if name != "light"})
    assert "lacks light, which the model was fitted to" in fails(capsys, *fit)
    for name, cell, told in (
        ("soil", "peat", "column 'soil' has 'peat' in line 3, which is none of its categories at the fit"),
        ("light", "dim", "column 'light' holds numbers, but 'dim' in line 3"),
        ("growth", "much", "column 'growth' holds numbers, but 'much' in line 3"),
        ("light", "", "column 'light' has no value in line 3"),
    ):
        write(new, {**table(20), name: [table()[name][0], cell, *table(20)[name][2:]]})
        assert told in fails(capsys, *fit)
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


def test_id_columns_are_copied(folder: Path, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f'plant {i}, "{i % 7}"' for i in range(20)]
    new = {"name": names, **table(20), "number": [str(i).zfill(3) for i in range(20)]}
    path = write(tmp_path / "new.csv", new)
    monkeypatch.setattr(tables, "ROWS", 7)
    predict = ["predict", str(folder / "plants.pgp"), str(path), "--quiet"]
    assert main(predict) == 0
    plain = read(capsys.readouterr().out)
    assert main([*predict, "--id", "number,name"]) == 0
    found = read(capsys.readouterr().out)
    assert list(found) == ["number", "name", "mean", "std"]
    assert found == {"number": new["number"], "name": names} | plain
    assert main(["sample", *predict[1:], "--num", "1", "--id", "name"]) == 0
    assert list(read(capsys.readouterr().out)) == ["name", "sample_1"]
    assert "--id: new.csv has no column 'nam'" in fails(capsys, *predict, "--id", "nam")

    # At the fit an id is no input; the table to learn from may lack it.
    out = tmp_path / "p.csv"
    for learned in (path, folder / "plants.csv"):
        fit = ["fit", str(learned), "--target", "growth", "--id", "name,number", "--predict", str(path)]
        assert main([*fit, "--predictions", str(out), "--json", *SMALL]) == 0
        assert json.loads(capsys.readouterr().out)["inputs"][:4] == ["temperature", "light", "water", "soil=clay"]
        assert read(out)["name"] == names
    assert "--id: plants.csv has no column 'name'" in fails(capsys, *fit[:6])


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
    assert "'peat' in line 3" in fails(capsys, "predict", model, path), "and no titles without predictions"
    new["soil"][1], new["water"][2] = "clay", "wet"
    path = write(tmp_path / "a.csv", new)
    assert "column 'water' holds numbers, but 'wet' in line 4" in fails(
        capsys, "predict", model, path, "--out", tmp_path / "p.csv"
    )


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


def test_dates_with_and_without_a_zone_are_not_exchanged(tmp_path: Path, capsys: Capture) -> None:
    days = [f"2020-01-{day:02}" for day in range(1, 29)]
    known = write(tmp_path / "a.csv", {"day": days, "y": list(range(28))})
    zoned = write(tmp_path / "b.csv", {"day": [f"{day}T00:00+09:00" for day in days]})
    model = tmp_path / "m.pgp"
    assert main(["fit", str(known), "--target", "y", "--out", str(model), "--quiet", *SMALL]) == 0
    assert main(["predict", str(model), str(known), "--quiet"]) == 0
    capsys.readouterr()
    told = "column 'day' held times without a zone at the fit and holds times with a zone now"
    assert told in fails(capsys, "predict", model, zoned)
