"""The pages on the thesis hold what the results say, and verdicts follow their rule."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from benchmarks.thesis import pages
from benchmarks.thesis.index import items
from benchmarks.thesis.published import VERDICTS, Cell, mean, printed, tables


@pytest.fixture(autouse=True)
def committed_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATHGP_RESULTS", raising=False)


def test_no_number_without_a_file() -> None:
    """Pages that are made again from the results are the same, character by character."""
    assert pages.check() == 0
    made = pages.make_pages()
    assert {path.name for path in pages.PAGES.glob("*.md")} == set(made)
    for name, text in made.items():
        same = (pages.PAGES / name).read_text(encoding="utf-8") == text
        assert same, f"{name} is not what the results say: run python -m benchmarks.thesis pages"


def test_every_cell_of_the_thesis_has_a_verdict() -> None:
    """No table leaves out a cell silently: verdicts add up to the number of printed cells, CaGP and others apart."""
    for item in items():
        if item.kind == "table":
            known = tables()[item.name]
            rows = {cell.row for cell in item.load().table_cells()}
            expected = sum(
                cell is not None
                for block in known["blocks"].values()
                for row, cells in block.items()
                if row in rows
                for cell in cells
            )
            found = pages.verdicts(item)
            assert sum(found.values()) == expected, item.name
            assert set(found) <= set(VERDICTS)


def test_published_numbers() -> None:
    """A few cells as printed, read by eye."""
    assert printed("table 4.1", "NLL", "SDD", "bike") == ["-2.49", "0.09"]
    assert printed("table 3.1", "low-noise RMSE", "CG", "keggdirected") == ["9.79", "1.06"]
    assert printed("table 3.1", "low-noise RMSE", "SVGP", "pol") is None
    assert mean("table 5.1", "minutes", "AP-pathwise-cold", "keggdirected") == 211.0
    assert mean("table 6.1", "test NLL", "LKGP", "kr-vs-kp") == -0.633
    assert mean("table 6.2", "minutes", "LKGP", "temperature 50 %") == 21.2


@pytest.mark.parametrize(
    ("values", "higher", "theirs", "expected"),
    [
        ((0.0849,), False, ["0.08", "0.00"], "within"),  # half a unit of the last digit
        ((0.0851,), False, ["0.08", "0.00"], "worse"),
        ((0.0749,), False, ["0.08", "0.00"], "better"),
        ((1.0,), True, ["0.90", "0.02"], "better"),
        ((0.80,), True, ["0.90", "0.02"], "worse"),
        ((0.87, 0.93, 0.99), False, ["0.90", "0.00"], "within"),  # mean 0.93, standard error 0.035
        ((0.92, 0.93, 0.94), False, ["0.90", "0.00"], "worse"),  # the same mean, standard error 0.006
        ((), False, ["0.90"], "not run"),
        ((1.0,), False, None, "not comparable"),
    ],
)
def test_verdicts(values: tuple[float, ...], higher: bool, theirs: list[str] | None, expected: str) -> None:
    assert Cell("b", "r", "c", values, higher_is_better=higher).verdict(theirs) == expected
    assert Cell("b", "r", "c", values, "another data set").verdict(theirs) == "not comparable"
