"""The code on documentation pages that are programs runs as printed, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

DOCS = Path(__file__).parent.parent / "docs"


DOORS = ["doors/botorch.md", "doors/gpytorch.md", "doors/sklearn.md", "doors/xarray.md"]
PAGES = ["grids.md", "learning.md", "saving.md", *DOORS]


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str) -> None:
    if page in DOORS:
        pytest.importorskip(Path(page).stem)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})
