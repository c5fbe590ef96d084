"""``pathgp fit --smiles``: from a table with a column of SMILES to predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pathgp
from cli_cases import Capture, fails, numbers, read, write
from pathgp.cli import main
from pathgp.compute.counts import CountRows

pytest.importorskip("rdkit", reason="molecules need RDKit")
pytest.importorskip("sklearn", reason="the transformer needs scikit-learn")

from pathgp.chem import fingerprints

# Chains with a group at the end: the target is the length, and one more for an alcohol.
SMILES = ["C" * length + end for length in range(1, 16) for end in ("", "O", "N")]
TARGET = [length + (end == "O") for length in range(1, 16) for end in ("", "O", "N")]
FIT = ["--target", "y", "--smiles", "molecule", "--steps", "5", "--samples", "4", "--quiet"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "molecules.csv", {"name": list(range(45)), "molecule": SMILES, "y": TARGET})


def test_fit_and_predict(table: Path, tmp_path: Path, capsys: Capture) -> None:
    model, out = tmp_path / "model", tmp_path / "out.csv"
    chosen = ["--fingerprint", "bits", "--radius", "1", "--size", "64"]
    assert main(["fit", str(table), *FIT, *chosen, "--out", str(model), "--report", str(tmp_path / "page.html")]) == 0
    post = pathgp.load(model)
    assert isinstance(post.X, CountRows)
    assert post.about["molecules"] == {"column": "molecule", "radius": 1, "size": 64, "counts": False}
    assert main(["predict", str(model), str(table), "--id", "name", "--out", str(out), "--quiet"]) == 0
    expected = post.mean(fingerprints(SMILES, radius=1, size=64, counts=False))
    np.testing.assert_allclose(numbers(read(out), "mean"), expected, rtol=1e-5)
    capsys.readouterr()
    assert main(["info", str(model)]) == 0
    assert "molecule, Morgan bits of radius 1 in 64 columns" in capsys.readouterr().out
    assert main(["info", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"] == ["molecule"]


def test_errors_name_line_and_smiles(table: Path, tmp_path: Path, capsys: Capture) -> None:
    bad = write(tmp_path / "bad.csv", {"molecule": ["CC", "C(C", "CO"], "y": [1.0, 2.0, 3.0]})
    assert "line 3 is not a valid SMILES: 'C(C'" in fails(capsys, "fit", bad, *FIT)
    model = tmp_path / "model"
    assert main(["fit", str(table), *FIT, "--size", "32", "--out", str(model)]) == 0
    assert "line 3 is not a valid SMILES: 'C(C'" in fails(capsys, "predict", model, bad, "--out", tmp_path / "out.csv")
    gap = write(tmp_path / "gap.csv", {"molecule": ["CC", "", "CO"], "y": [1.0, 2.0, 3.0]})
    told = fails(capsys, "fit", gap, *FIT)
    assert (
        "column 'molecule' has no value in line 3: fill in what is missing, or leave such rows out with --skip" in told
    )
    assert "--ignore" not in told  # which does not go with --smiles
    assert main(["fit", str(gap), *FIT, "--skip-missing", "--holdout", "0"]) == 0


def test_options_that_contradict(table: Path, capsys: Capture) -> None:
    assert "--size needs --smiles" in fails(capsys, "fit", table, "--target", "y", "--size", "64", code=2)
    assert "--kernel does not go with --smiles" in fails(capsys, "fit", table, *FIT, "--kernel", "matern-1/2", code=2)
    assert "--inputs does not go with --smiles" in fails(capsys, "fit", table, *FIT, "--inputs", "name", code=2)
    assert "--smiles: molecules.csv has no column 'x'" in fails(capsys, "fit", table, "--target", "y", "--smiles", "x")
    twice = ["--target", "molecule", "--smiles", "molecule"]
    assert "cannot be an input and the target" in fails(capsys, "fit", table, *twice, code=2)
    assert "--smiles needs a file" in fails(capsys, "fit", "--smiles", "molecule", code=2)


def test_missing_library(table: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit", None)
    monkeypatch.delitem(sys.modules, "pathgp.chem")
    assert "pip install 'pathgp[chem]'" in fails(capsys, "fit", table, *FIT)


def test_a_note_names_the_columns_that_are_not_used(tmp_path: Path, capsys: Capture) -> None:
    columns = {"name": list(range(45)), "molecule": SMILES, "mass": TARGET, "y": TARGET}
    table = write(tmp_path / "molecules.csv", columns)
    chosen = [*FIT[:-1], "--size", "32"]
    assert main(["fit", str(table), *chosen, "--id", "name"]) == 0
    assert "the inputs are the fingerprints of 'molecule'; not used: mass\n" in capsys.readouterr().err
    assert main(["fit", str(table), *FIT, "--size", "32"]) == 0
    assert capsys.readouterr().err == ""
    assert "--id: molecules.csv has no column 'nam'" in fails(capsys, "fit", table, *FIT, "--id", "nam")
