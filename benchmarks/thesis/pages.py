"""The pages docs/thesis/*.md, made from the results: no number in them is written by hand.

Every page has the figures and tables of one chapter. A cell of a table shows our mean and standard error over splits or
seeds, the thesis's beside it, and a verdict (`published.Cell.verdict`).
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common.claims import README, make_readme
from benchmarks.common.recording import BENCHMARKS
from benchmarks.thesis.index import PICTURES, Item, items
from benchmarks.thesis.published import Cell, count, estimate_spreads, markdown, printed, tables
from benchmarks.thesis.reasons import count_values, explain_groups, make_worse_table

ROOT = BENCHMARKS.parent
PAGES = ROOT / "docs" / "thesis"
RESULTS = BENCHMARKS / "results"
CHAPTERS = {
    2: "Background",
    3: "Stochastic gradient descent",
    4: "Stochastic dual descent",
    5: "Solvers for learning",
    6: "Latent Kronecker structure",
}
MARKS = {"within": "=", "better": "▲", "worse": "▼", "not comparable": "·", "not run": ""}
# More facts about the run of a figure than this are a table.
LINE_OF_FACTS = 6
# Between a mark, a number and its error: lines of a narrow cell break before the bracket only.
_NO_BREAK = "\u00a0"
LEGEND = """\
A cell shows our mean ± its standard error over splits or seeds, and in brackets that of the thesis. Without ± our
number is from one split or seed. `=` means that the difference is at most the allowed one, `▲` that ours is better,
`▼` that it is worse, `·` that the two cannot be compared. A dash in place of our number means that this case was not
run. A cell without brackets is not in the thesis.

The allowed difference is the root of the sum of both squared standard errors, plus half a unit of the last digit that
the thesis prints. Where the thesis prints no standard error, it counts as zero. A number from one split has no standard
error of its own. Instead we take the standard deviation over the splits of another row in the same column, the one with
the most splits; it counts as zero if no row has three."""
TERMS = """\
- **RMSE, NLL**: root mean square error, and negative log predictive density, as means over the test rows. Less is
  better.
- **H**: the matrix of a linear system, the kernel matrix plus the noise variance. **Epoch**: work that costs as much as
  one product with H.
- **Residual**: the norm of b - H v over that of b, for a solution v of H v = b.
- **CG, AP, SDD, SGD**: the solvers conjugate gradients, alternating projections, stochastic dual descent, and
  stochastic gradient descent ([solvers](../solvers/index.md)).
- **Probe**: a random right-hand side, by which gradients of the likelihood are estimated ([learning](../learning.md)).
- **SVGP, VNNGP, CaGP**: approximations in GPyTorch: sparse variational, variational nearest-neighbour, and
  computation-aware Gaussian processes.
- **LKGP**: `LatentKroneckerGP`, for [grids with missing cells](../grids.md)."""
NOTE = "<!-- Written by python -m benchmarks.thesis pages. -->"


def make_pages() -> dict[str, str]:
    """The text of every page by its file name."""
    known = items()
    pages = {"index.md": make_index(known)}
    for chapter, title in CHAPTERS.items():
        parts = [f"# Chapter {chapter}: {_start_low(title)}", NOTE]
        mine = [item for item in known if item.chapter == chapter]
        parts += ["[Terms and abbreviations](index.md#terms)"]
        parts += [LEGEND] if any(item.kind == "table" for item in mine) else []
        for item in sorted(mine, key=lambda item: (item.kind == "figure", item.order)):
            parts += table_section(item) if item.kind == "table" else figure_section(item)
        pages[f"chapter-{chapter}.md"] = "\n\n".join(parts) + "\n"
    return pages


def make_index(known: list[Item]) -> str:
    """The first page: how to run everything, and the verdicts of all tables."""
    titles = "| table | within `=` | better `▲` | worse `▼` | share within or better | of these from one split or seed "
    lines = [titles + "| not comparable `·` | not run |", "|---" * 8 + "|"]
    total: Counter[str] = Counter()
    for item in known:
        if item.kind == "table":
            found = verdicts(item)
            found["single"] = count_single(item)
            total += found
            lines.append(_count_line(f"[{item.name}](chapter-{item.chapter}.md#{_anchor(item)})", found))
    lines.append(_count_line("all", total))
    drawn = [item for item in known if item.kind == "figure" and picture(item).exists()]
    figures = [item for item in known if item.kind == "figure"]
    missing = ", ".join(item.number for item in figures if item not in drawn)
    sentence = f"{len(drawn)} of {len(figures)} figures are drawn." + (f" Missing: {missing}." if missing else "")
    chapters = "\n".join(f"- [Chapter {n}: {_start_low(title)}](chapter-{n}.md)" for n, title in CHAPTERS.items())
    return (
        "\n\n".join(
            [
                "# The thesis by command",
                NOTE,
                INTRODUCTION,
                chapters,
                "\n".join(lines),
                LEGEND,
                sentence,
                "## Terms",
                TERMS,
            ]
        )
        + "\n"
    )


INTRODUCTION = """\
All tables and figures of J. A. Lin's thesis *Scalable Gaussian Processes* (Cambridge, 2025), made with this library.

```shell
python -m benchmarks.thesis list                 # all tables and figures
python -m benchmarks.thesis run "table 4.1"      # one, at the size that suits the device
python -m benchmarks.thesis all --quick          # everything, at tiny sizes
python -m benchmarks.thesis pages                # these pages, from the results
```

Results are JSON files in `benchmarks/results` with device, versions, date, revision and command. On the pages,
`at 7976ab1+` names the revision; the plus sign means that files had changes that were not committed. Data sets come
from [public sources](../datasets.md), and a command says which file it lacks; several sets of the thesis could not be
obtained. The table counts cells by their verdict, which is explained below it."""


def _count_line(name: str, found: Counter[str]) -> str:
    judged = found["within"] + found["better"] + found["worse"]
    share = f"{found['within'] + found['better']} of {judged}" if judged else "–"
    parts = [found["within"], found["better"], found["worse"], share, found["single"]]
    parts += [found["not comparable"], found["not run"]]
    return "| " + " | ".join([name, *map(str, parts)]) + " |"


def all_cells(item: Item) -> list[Cell]:
    """All our cells of a table."""
    return estimate_spreads(item.load().table_cells())


def thesis_cells(item: Item) -> list[Cell]:
    """Our cells that have a counterpart in the thesis."""
    blocks = tables()[item.name]["blocks"]
    return [c for c in all_cells(item) if c.row in blocks[c.block] and printed(item.name, c.block, c.row, c.column)]


def verdicts(item: Item) -> Counter[str]:
    """How many cells of the thesis's table have each verdict."""
    return count(item.name, thesis_cells(item))


def count_single(item: Item) -> int:
    """How many verdicts are on a single split or seed."""
    judged = [cell for cell in thesis_cells(item) if len(cell.values) == 1]
    return len([cell for cell in judged if verdict_of(item, cell) in ("within", "better", "worse")])


def verdict_of(item: Item, cell: Cell) -> str:
    return cell.verdict(printed(item.name, cell.block, cell.row, cell.column))


def table_section(item: Item) -> list[str]:
    """Heading, command, verdicts, one table per block, reasons."""
    module = item.load()
    cells = all_cells(item)
    found = verdicts(item)
    good, judged = found["within"] + found["better"], found["within"] + found["better"] + found["worse"]
    comparison = f"Within or better: **{good} of {judged}** cells that can be compared."
    if not judged:
        comparison = "No cell can be compared."
    parts = [
        f"## {item.name.capitalize()}: {_start_low(module.TITLE)} {{ #{_anchor(item)} }}",
        f'`python -m benchmarks.thesis run "{item.name}"`. Thesis: {tables()[item.name]["caption"]}.',
        module.PROTOCOL,
        count_values(item.name, cells),
        _provenance(module.RESULTS),
        comparison,
    ]
    for block in tables()[item.name]["blocks"]:
        mine, titles = [cell for cell in cells if cell.block == block], getattr(module, "COLUMN_TITLES", {})
        parts += [f"**{block}**", _block(item.name, mine, titles)]
    supplement = getattr(module, "supplement", None)
    return parts + _reasons(item, cells) + (supplement() if supplement else [])


def _block(table: str, cells: list[Cell], titles: dict[str, str]) -> str:
    """A Markdown table; columns in which nothing of ours was run are left out.

    titles: of columns whose data are not those of the thesis.
    """
    columns = [c for c in tables()[table]["columns"] if any(cell.values for cell in cells if cell.column == c)]
    if not columns:
        return "Nothing of this block was run."
    shown = (titles.get(column, column) for column in columns)
    lines = ["| | " + " | ".join(shown) + " |", "|---" * (1 + len(columns)) + "|"]
    for row in dict.fromkeys(cell.row for cell in cells):
        known = {cell.column: cell for cell in cells if cell.row == row}
        if any(known[column].values for column in columns) or row in tables()[table]["blocks"][cells[0].block]:
            lines.append(f"| {row} | " + " | ".join(_shown(table, known[column]) for column in columns) + " |")
    return "\n".join(lines)


def _shown(table: str, cell: Cell) -> str:
    theirs = printed(table, cell.block, cell.row, cell.column)
    digits = len(theirs[0].partition(".")[2]) if theirs else 2
    bracket = f" ({' ± '.join(theirs)})" if theirs else ""
    mark = MARKS[cell.verdict(theirs)] if theirs else ""
    shown = f"{mark} {cell.text(max(2, digits + 1))}".strip().replace(" ", _NO_BREAK)
    return shown + bracket.replace(" ± ", f"{_NO_BREAK}±{_NO_BREAK}")


def _reasons(item: Item, cells: list[Cell]) -> list[str]:
    """Why cells cannot be compared, why others were not run, and why cells are worse."""
    worse = worse_cells(item)
    return explain_groups(item.name, cells) + (make_worse_table(item, worse) if worse else [])


def worse_cells(item: Item) -> list[Cell]:
    """Our cells that are worse than the thesis's."""
    return [cell for cell in thesis_cells(item) if verdict_of(item, cell) == "worse"]


def figure_section(item: Item) -> list[str]:
    """Heading, picture for light and dark pages, text, and what the record says."""
    module = item.load()
    parts = [f"## {item.name.capitalize()}: {_start_low(module.TITLE)} {{ #{_anchor(item)} }}"]
    if picture(item).exists():
        for scheme, suffix in (("light", ""), ("dark", "-dark")):
            parts.append(f"![{module.TITLE}](../assets/figures/figure-{item.number}{suffix}.png#only-{scheme})")
    else:
        parts.append(f"*Not drawn yet: run `python -m benchmarks.thesis run {item.number}`.*")
    parts.append(module.TEXT)
    file = RESULTS / f"{item.key}.json"
    if file.exists():
        record = json.loads(file.read_text())
        facts = [(row["fact"], _number(row["value"])) for row in record["rows"]]
        if len(facts) > LINE_OF_FACTS:
            parts += [_provenance((item.key,)), markdown(("of this run", "value"), facts)]
        else:
            listed = "; ".join(f"{name}: {value}" for name, value in facts)
            parts.append(f"Run: {listed}. {_provenance((item.key,))}" if facts else _provenance((item.key,)))
    elif picture(item).exists():
        again = f'`python -m benchmarks.thesis run "{item.name}"`'
        parts.append(f"This figure has no record of its run. {again} draws it again and writes one.")
    return parts


def picture(item: Item) -> Path:
    return PICTURES / f"figure-{item.number}.png"


def _provenance(names: tuple[str, ...]) -> str:
    """Where and when the results were made."""
    said = []
    for name in names:
        file = RESULTS / f"{name}.json"
        if file.exists():
            record = json.loads(file.read_text())
            device = "CPU" if record["device"] in ("x86_64", "aarch64") else record["device"]
            at = f" at {record['revision']}" if record.get("revision") else ""
            took = f", {record['seconds']:.0f} s" if name.startswith("figure") else ""
            said.append(f"`{name}.json`: {device}, {record['date']}{at}{took}")
    return f"Results: {'; '.join(said)}." if said else "No results yet."


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _start_low(title: str) -> str:
    return title[0].lower() + title[1:]


def _anchor(item: Item) -> str:
    return item.name.replace(" ", "-").replace(".", "-")


def write_pages() -> None:
    """Write all pages, and the table of the README."""
    README.write_text(make_readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    PAGES.mkdir(exist_ok=True)
    for name, text in make_pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
        print(PAGES / name)


def check() -> int:
    """The number of pages that differ from what the results say, README included."""
    differ = [n for n, text in make_pages().items() if (PAGES / n).read_text(encoding="utf-8") != text]
    readme = README.read_text(encoding="utf-8")
    differ += ["README.md"] if make_readme(readme) != readme else []
    print(f"differ: {', '.join(differ)}" if differ else "all pages hold what the results say")
    return len(differ)
