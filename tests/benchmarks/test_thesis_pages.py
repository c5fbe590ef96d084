"""The pages on the thesis hold what the results say, and verdicts follow their rule."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
from benchmarks.thesis import pages
from benchmarks.thesis.index import Item, items
from benchmarks.thesis.published import VERDICTS, Cell, estimate_spreads, mean, printed, tables


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


TABLES = [item for item in items() if item.kind == "table"]


@pytest.mark.parametrize("item", TABLES, ids=lambda item: item.name)
def test_every_cell_of_the_thesis_has_a_verdict(item: Item) -> None:
    """Verdicts add up to the number of cells that the thesis prints."""
    blocks = tables()[item.name]["blocks"].values()
    expected = sum(cell is not None for block in blocks for cells in block.values() for cell in cells)
    found = pages.verdicts(item)
    assert sum(found.values()) == expected
    assert set(found) <= set(VERDICTS)


@pytest.mark.parametrize("item", TABLES, ids=lambda item: item.name)
def test_cells_without_a_good_verdict_have_a_reason(item: Item) -> None:
    """The pages say why a cell was not run, and name a measurement for every worse one."""
    for cell in pages.thesis_cells(item):
        if cell.verdict(printed(item.name, cell.block, cell.row, cell.column)) == "not run":
            assert cell.missing, cell
    for cell in pages.worse_cells(item):
        measured = [fact for title, fact in item.load().explain(cell).items() if title not in ("splits", "seeds")]
        assert any(letter.isdigit() for fact in measured for letter in fact), cell


def test_every_drawn_figure_has_a_record() -> None:
    for item in items():
        if item.kind == "figure" and pages.picture(item).exists():
            assert (pages.RESULTS / f"{item.key}.json").exists(), item.name


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


def test_the_spread_of_a_single_value_is_that_of_the_row_with_the_most() -> None:
    def cells(*rows: tuple[float, ...], column: str = "c") -> list[Cell]:
        return [Cell("b", f"row {i}", column, values) for i, values in enumerate(rows)]

    found = estimate_spreads(cells((1.0,), (1.0, 3.0, 5.0), (1.0, 1.1), ()) + cells((1.0,), (1.0, 9.0), column="d"))
    assert [cell.error for cell in found] == pytest.approx([2.0, 2.0 / 3**0.5, 0.05, 0.0, 0.0, 4.0])
    # Off by 1.9: within the spread of single values, which is not shown as an error.
    assert found[0].verdict(["2.9"]) == "within"
    assert found[4].verdict(["2.9"]) == "better"
    assert found[0].text(1) == "1.0"
