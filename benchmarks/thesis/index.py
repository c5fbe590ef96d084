"""The tables and figures of the thesis: every module here that is named after one."""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.common.recording import BENCHMARKS, results_file, write

PICTURES = BENCHMARKS.parent / "docs" / "assets" / "figures"
# Programs whose results a figure draws.
SOURCES = {"thompson": "benchmarks.thesis.thompson", "learning_scale": "benchmarks.hardware.learning_scale"}


@dataclass(frozen=True)
class Item:
    """A table or a figure: kind "table" or "figure", number such as "4.1"."""

    kind: str
    number: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.number}"

    @property
    def key(self) -> str:
        """The name of its module, and of its results if it is a figure."""
        return self.name.replace(" ", "_").replace(".", "_")

    @property
    def chapter(self) -> int:
        return int(self.number.split(".")[0])

    @property
    def order(self) -> tuple[int, str, int]:
        return self.chapter, self.kind, int(self.number.split(".")[1])

    def load(self) -> ModuleType:
        return importlib.import_module(f"benchmarks.thesis.{self.key}")


def items() -> list[Item]:
    """All, figures first in every chapter."""
    found = []
    for path in Path(__file__).parent.glob("*.py"):
        match = re.fullmatch(r"(table|figure)_(\d+)_(\d+)", path.stem)
        if match:
            found.append(Item(match[1], f"{match[2]}.{match[3]}"))
    return sorted(found, key=lambda item: item.order)


def find(name: str) -> Item:
    """An item by a name such as "table 4.1", "table-4.1" or "figure_5_10"; "5.10" alone is a figure."""
    match = re.fullmatch(r"(?:(table|figure)[ _-])?(\d+)[._](\d+)", name)
    item = Item(match[1] or "figure", f"{match[2]}.{match[3]}") if match else None
    if item not in items():
        raise SystemExit(f"no table or figure is called {name!r}: python -m benchmarks.thesis list names them")
    return item


def draw(
    item: Item, rows: int | None = None, steps: int | None = None, quick: bool = False, out: Path | None = None
) -> Path:
    """Draw a figure, and record what it was made from; the picture and the record belong together.

    Both go to the documentation and to benchmarks/results, with ``quick`` or ``out`` to one folder of their own.
    """
    from benchmarks.thesis.size import CPU_ROWS, choose_size

    module = item.load()
    size = choose_size(getattr(module, "CPU_ROWS", CPU_ROWS), rows, steps, quick)
    if quick:
        out = out or results_file(item.key).parent
        needs = getattr(module, "NEEDS", None)
        if needs and not any(out.glob(f"{needs}*.json")):
            run_program(SOURCES[needs], ["--quick"])
    path = (out or PICTURES) / f"figure-{item.number}.png"
    began = time.perf_counter()
    facts: dict[str, Any] = module.draw(path, size)
    took = time.perf_counter() - began
    rows_of_facts = [{"fact": name, "value": value} for name, value in facts.items()]
    record = write(item.key, rows_of_facts, seconds=took)
    if out is not None and record.parent != out:
        record.rename(out / record.name)
    return path


def run_program(module: str, arguments: list[str]) -> None:
    """Run the ``main`` of a benchmark with these arguments."""
    with _arguments(module, arguments):
        importlib.import_module(module).main()


@contextmanager
def _arguments(module: str, arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [module, *arguments]
    try:
        yield
    finally:
        sys.argv = before
