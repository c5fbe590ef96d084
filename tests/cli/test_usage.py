"""What is asked for: wrong options and places are told first; the small commands; the program from outside."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from cli_cases import Capture, fails, numbers, read
from pathgp.cli import fitting, main, output
from pathgp.cli.arguments import _parser
from pathgp.cli.commands import example_table
from pathgp.learning.progress import LongFitWarning
from pathgp.posterior.convergence import ConvergenceWarning


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fit", "plants.csv"], "name the column to predict with --target: there are temperature, light"),
        (["fit", "plants.csv", "--target", "growth", "--inputs", "growth"], "cannot be an input and the target"),
        (["fit", "plants.csv", "--target", "growth", "--inputs", "light,light"], "names a column twice"),
        (["fit", "plants.csv", "--target", "growth", "--noise"], "--noise needs --predict"),
        (["fit", "plants.csv", "--target", "growth", "--out", "m", "--checkpoint", "./m"], "have the same name"),
        (["fit", "-", "--target", "growth", "--predict", "-"], "standard input is read once"),
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
        (["fit", "--noise", "0.3", "a.csv"], "--noise-std 0.3 fixes the noise"),
        (["fit", "a.csv", "--noise=2e-1"], "--noise-std 2e-1 fixes the noise"),
        (["predict", "m.pgp", "a.csv", "--noise", "0.3"], "--noise has no value"),
        (["plan", "1.5", "8"], "expected a whole number, 1 or more, got '1.5'"),
        (["plan", "1e6", "8", "--memory", "8G"], "a text such as '8GB' or '8 GiB', got '8G'"),
        (["predict", "m"], "required: FILE"),
    ],
)
def test_usage_of_argparse(arguments: list[str], told: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(arguments)
    assert exit_code.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
    assert " --help\n" in said


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
    monkeypatch.setattr(fitting.GP, "fit", None)  # what comes after the check
    fit = ["fit", folder / "plants.csv", "--target", "growth"]
    assert "is a folder" in fails(capsys, *fit, "--out", folder, code=2)
    told = fails(capsys, *fit, "--report", folder / "plants.csv" / "a", code=2)
    assert f"cannot be written: there is no folder {folder / 'plants.csv'}" in told
    told = fails(capsys, "predict", "absent.pgp", "absent.csv", "--out", folder / "new" / "p.csv", code=2)
    assert f"there is no folder {folder / 'new'}, create it first" in told
    assert not (folder / "new").exists()
    monkeypatch.setattr(output.os, "access", lambda *_: False)
    assert "no permission" in fails(capsys, *fit, "--out", folder / "m", code=2)


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md"])
def test_documented_commands_exist(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
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
    assert main(["plan", "2e4", "8", "--memory", "2 GiB"]) == 0
    told = capsys.readouterr().out
    assert "20,000 rows" in told
    assert "2.15 GB available for K" in told
    assert main(["plan", "20000", "8", "--device", "h200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 20000
    assert main(["example", "--out", str(tmp_path / "a.csv")]) == 0
    assert capsys.readouterr().out == ""
    found = read(tmp_path / "a.csv")
    np.testing.assert_array_equal(numbers(found, "growth"), example_table()["growth"])
    assert main(["example"]) == 0
    assert capsys.readouterr().out == (tmp_path / "a.csv").read_text()
    assert main(["example", "plants"]) == 0
    assert capsys.readouterr().out == (tmp_path / "a.csv").read_text()


# Reports on standard error what must not be imported (parts of SciPy double the time of `import pathgp`, the compiler
# of torch takes seconds), then is the command line.
IMPORTS = """
import sys, torch, scipy.special  # releases before 1.12 import scipy.sparse here
late = {"scipy.optimize", "scipy.sparse", "scipy.spatial"} - sys.modules.keys()
import pathgp
print(*late & sys.modules.keys(), end="", file=sys.stderr)
X = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
post = pathgp.GP(pathgp.kernels.Matern(1.5, 0.3)).condition(X, X[:, 0], samples=4)
for method in ("solve", "neighbours", "samples"):
    post.variance(X.repeat(20, 1), method=method)
print(*{"pathgp.cli", "pyarrow", "torch._dynamo"} & sys.modules.keys(), end="", file=sys.stderr)
import runpy
runpy.run_module("pathgp", run_name="__main__", alter_sys=True)
"""


def test_from_outside(folder: Path, tmp_path: Path) -> None:
    """As a process: what is imported, and a reader that leaves early is no error to tell of."""
    model, path = folder / "plants.pgp", folder / "plants.csv"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, "sample", str(model), str(path), "--quiet", "--num", "8"],
        cwd=tmp_path,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_warnings_name_options(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(options: object) -> None:
        warnings.warn("5,000 rows: about 4 min; limit it by time_limit= (seconds)", LongFitWarning, stacklevel=1)
        warnings.warn("rounding errors: use float64", ConvergenceWarning, stacklevel=1)

    monkeypatch.setattr(fitting, "fit", warn)
    assert main(["fit"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("5,000 rows: about 4 min; limit it with --minutes, or use a GPU with --device cuda")
    assert lines[1].endswith("rounding errors: use --precision float64")
