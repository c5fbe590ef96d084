"""The README's code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.split("\n")[0])
def test_code_runs(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parent.parent
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if "://" not in target]
    assert targets
    assert [target for target in targets if not (root / target.split("#")[0]).exists()] == []
