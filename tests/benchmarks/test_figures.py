"""Every figure of the thesis draws at a tiny size, on made-up rows where it needs a UCI set."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
from PIL import Image

from benchmarks.common import drawing
from benchmarks.common.drawing import darken
from benchmarks.common.uci import Regression
from benchmarks.thesis import __main__, size
from benchmarks.thesis.index import Item, draw, find, items

FIGURES = [item for item in items() if item.kind == "figure"]
# Figures that another one draws with the same code are left to ``python -m benchmarks.thesis all --quick``.
TWINS = ("2.2", "2.3", "4.4", "5.7", "5.8")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty rows in place of a UCI set."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(80, 3, generator=generator)
    y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(80, generator=generator)

    def table(name: str, **options: Any) -> Regression:
        tables = [part.to(options.get("dtype", X.dtype)) for part in (X[:60], y[:60], X[60:], y[60:])]
        return Regression(name, *tables, noise=0.1, signal=1.0, lengthscale=torch.ones(3))

    monkeypatch.setattr(size, "uci", table)


def test_there_are_all_29() -> None:
    numbers = {2: 3, 3: 7, 4: 4, 5: 10, 6: 5}
    expected = [f"{chapter}.{n}" for chapter, last in numbers.items() for n in range(1, 1 + last)]
    assert [item.number for item in FIGURES] == expected
    assert [item.number for item in items() if item.kind == "table"] == ["3.1", "4.1", "4.2", "5.1", "6.1", "6.2"]


def test_names() -> None:
    assert find("5.10") == find("figure 5.10") == find("figure_5_10") == Item("figure", "5.10")
    assert find("table-4.1").key == "table_4_1"
    for wrong in ("7.1", "table 2.1", "all"):
        with pytest.raises(SystemExit, match="no table or figure is called"):
            find(wrong)


@pytest.mark.parametrize("arguments", [["all", "--quick"], ["all", "table 4.2", "--quick"], ["run", "4.2", "--quick"]])
def test_quick_reaches_every_item(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option an item would run at full size and replace its committed results."""
    given: list[list[str]] = []
    monkeypatch.setattr(__main__, "run", lambda item, options: given.append(options))
    monkeypatch.setattr("sys.argv", ["benchmarks.thesis", *arguments])
    with contextlib.suppress(SystemExit):
        __main__.main()
    assert given
    assert all(options == ["--quick"] for options in given)


def test_what_did_not_run_is_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without data nothing fails, and nothing is called run."""
    ends = iter([None, SystemExit("pol.npz is not in data"), SystemExit(1), ValueError("no"), SystemExit(0)])

    def run(item: Item, options: list[str]) -> None:
        end = next(ends)
        if end is not None:
            raise end

    monkeypatch.setattr(__main__, "run", run)
    assert __main__.run_all(FIGURES[:5], []) == 2
    lines = capsys.readouterr().out.splitlines()
    states = ["ok", "skipped: pol.npz is not in data", "FAILED", "FAILED: ValueError: no", "ok"]
    assert [line.split(": ", 1)[1].rsplit(",", 1)[0] for line in lines[:-1]] == states
    assert lines[-1].startswith("2 ran, 1 skipped, 2 failed, ")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("item", [item for item in FIGURES if item.number not in TWINS], ids=lambda item: item.number)
@pytest.mark.usefixtures("made_up", "plain_layout")
def test_draws(item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture for light and one for dark pages, and a record."""
    monkeypatch.setenv("PATHGP_RESULTS", str(tmp_path))
    # Drawing takes longer than the computations.
    monkeypatch.setattr(drawing, "DPI", 40)
    try:
        path = draw(item, quick=True)
    except SystemExit as missing:  # a data set or a library
        pytest.skip(str(missing))
    for picture in (path, path.with_stem(f"{path.stem}-dark")):
        with Image.open(picture) as image:
            assert min(image.size) > 60
    assert (tmp_path / f"{item.key}.json").exists()


def test_dark_colours() -> None:
    """Paper becomes dark, ink light, and a colour keeps its hue."""
    assert max(darken((255, 255, 255))) < 60
    assert min(darken((0, 0, 0))) > 200
    red, green, blue = darken((209, 73, 91))
    assert red > max(green, blue)
