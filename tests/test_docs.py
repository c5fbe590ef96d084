"""The code on documentation pages runs as printed, block after block, and prints what the page says.

A block that opens with ```python runs; one with a title (```python title="GPyTorch") is only shown, unless the title is
our own name. A ```text block right after code is what that code prints: words must be the same, numbers nearly, and
lines that speak of time and effort are free to differ.
"""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("matplotlib").use("Agg")

DOCS = Path(__file__).parent.parent / "docs"

# Pages that are programs, and the libraries they need.
PAGES = {
    "index.md": [],
    "tour.md": [],
    "learning.md": [],
    "grids.md": [],
    "fields.md": [],
    "inducing.md": [],
    "evidence.md": [],
    "saving.md": [],
    "kernels.md": [],
    "trends.md": [],
    "architecture.md": [],
    "diagnostics.md": [],
    "guides/big-table.md": [],
    "guides/grid-with-holes.md": ["xarray"],
    "guides/kriging.md": ["xarray"],
    "guides/optimisation.md": ["botorch"],
    "guides/molecules.md": [],
    "guides/shortlist.md": ["rdkit", "sklearn"],
    "guides/thompson.md": [],
    "doors/botorch.md": ["botorch"],
    "doors/gpytorch.md": ["gpytorch"],
    "doors/sklearn.md": ["sklearn"],
    "doors/xarray.md": ["xarray"],
    "from-gpytorch.md": ["gpytorch"],
    "from-pykrige.md": ["xarray"],
    "from-sklearn.md": ["sklearn"],
}
# Pages that show what is printed; on the others text blocks are excerpts.
PRINTED = ["tour.md", *(page for page in PAGES if page.startswith("guides/"))]

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
VARIES = (
    "why",
    "solver",
    "solves",
    "epochs",
    "residual",
    "error bound",
    "seconds",
    "posterior",
    "dense",
    "streamed",
    "kronecker",
)


class Block(NamedTuple):
    code: str
    line: int
    printed: str | None  # what the page says it prints


def blocks(text: str) -> Iterator[Block]:
    """The code of a page that runs, with what is said to be printed."""
    found = list(FENCE.finditer(text))
    for here, after in zip(found, [*found[1:], None], strict=True):
        language, options, code = here.groups()
        if language == "python" and options.strip() in ("", 'title="pathgp"'):
            follows = after is not None and after[1] == "text" and not text[here.end() : after.start()].strip()
            printed = after[3] if after is not None and follows else None
            yield Block(code, text.count("\n", 0, here.start()) + 1, printed)


def run(block: Block, page: str, names: dict[str, Any]) -> str:
    """Run a block with the line numbers of its page; what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\n" * block.line + block.code, page, "exec", dont_inherit=True), names)
    return out.getvalue()


def told(text: str) -> tuple[list[list[str]], list[float]]:
    """Words line by line and the numbers among them, without the lines that differ between machines."""
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith(VARIES)]
    words = [NUMBER.sub("#", line).split() for line in lines]
    numbers = [n.replace(",", "").replace("−", "-") for line in lines for n in NUMBER.findall(line)]
    return words, [float(n) for n in numbers]


@pytest.mark.usefixtures("plain_layout")
@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in PAGES[page]:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    found = list(blocks((DOCS / page).read_text(encoding="utf-8")))
    assert found
    for block in found:
        printed = run(block, page, names)
        if page in PRINTED:
            shown = told(block.printed or "")
            assert told(printed)[0] == shown[0], f"{page}, line {block.line} prints\n{printed}"
            assert told(printed)[1] == pytest.approx(shown[1], rel=0.05, abs=0.02), (
                f"{page}, line {block.line}\n{printed}"
            )


def test_titled_blocks_are_only_shown() -> None:
    page = (
        '```python title="GPyTorch"\n1 / 0\n```\n\n```python title="pathgp"\nx = 1\n```\n\n```python\nprint(x)\n```\n'
    )
    assert [block.code for block in blocks(page)] == ["x = 1\n", "print(x)\n"]
    (block,) = blocks("```python\nprint(1)\n```\n\n```text\n1\n```\n")
    assert block == Block("print(1)\n", 1, "1\n")
    assert [block.printed for block in blocks("```python\nprint(1)\n```\n\nwords\n\n```text\n1\n```\n")] == [None]


def test_what_is_told() -> None:
    assert told("seconds 3.1\nstd  0.25, −1,000 rows\n") == ([["std", "#,", "#", "rows"]], [0.25, -1000.0])


def test_every_extra_is_explained() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for_users = set(project["optional-dependencies"]) - {"test", "lint", "docs", "bench", "dev"}
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == for_users


def test_what_is_declared_was_tried() -> None:
    """The table of versions has every Python of the classifiers, and the oldest torch that is allowed."""
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {c.split(" :: ")[-1] for c in project["classifiers"] if re.search(r"Python :: 3\.", c)}
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    tried = re.findall(r"^\| (3\.\d+) \| (\d+\.\d+)", page, flags=re.MULTILINE)
    assert {python for python, _ in tried} == declared
    oldest = min((torch for _, torch in tried), key=lambda torch: [int(part) for part in torch.split(".")])
    assert f"torch>={oldest}" in project["dependencies"]


def test_every_page_can_be_found() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", navigation)) == pages
    assert set(PAGES) <= pages


def test_search_works_from_a_folder() -> None:
    """The index is a script, and so is the stand-in for workers; neither comes from the network."""
    settings = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert "  - offline\n" in settings
    (polyfill,) = re.findall(r"polyfills: \[(.*)\]", settings)
    # Without this name the plugin adds a script from the network.
    assert "iframe-worker" in polyfill
    assert (DOCS / polyfill).is_file()
