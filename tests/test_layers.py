"""The layers of the library: a module imports from its own package and from lower layers only.

Imports inside functions and for type checkers count, too. Packages do not use private names of other packages.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "pathgp"
# From the lowest to the highest; packages of one layer do not import each other.
LAYERS = (
    ("_version", "compute"),
    ("kernels", "means", "metrics"),
    ("features",),
    ("operators",),
    ("solvers",),
    ("pathwise",),
    ("data",),
    ("sparse",),
    ("posterior",),
    ("diagnostics",),
    ("learning",),
    ("models",),
    ("io",),
    ("plans",),
    ("plots",),
    ("decisions", "kriging"),
    ("html",),
    ("pathgp",),
    ("sklearn", "xarray", "gpytorch", "chem"),
    ("botorch",),
    ("cli",),
    ("__main__",),
)
# The only modules outside of a package.
TOP = {"__init__", "__main__", "_version", "pathwise", "plans", "metrics", "means", "plots"}
TOP |= {"sklearn", "botorch", "gpytorch", "xarray", "chem"}
# Convenience methods, which import when they are called.
UPWARDS = {("posterior", "io"), ("posterior", "html"), ("decisions", "html"), ("kriging", "html")}


def modules() -> dict[str, Path]:
    """Files by the name of their module, without that of the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name or "pathgp"] = path
    return found


def package(module: str) -> str:
    return module.split(".")[0]


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """What a file imports from the package, without its name, and whether only when a function is called."""
    return tuple(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    late = {id(inner) for function in functions for inner in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "pathgp":
                    yield alias.name.removeprefix("pathgp").removeprefix(".") or "pathgp", id(node) in late
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pathgp":
            inside = node.module.removeprefix("pathgp").removeprefix(".")
            for alias in node.names:
                whole = alias.name if (ROOT / f"{alias.name}.py").exists() or (ROOT / alias.name).is_dir() else "pathgp"
                yield inside or whole, id(node) in late


def upward() -> set[tuple[str, str]]:
    """Importing module and imported package, wherever the latter is not below; `UPWARDS` left out."""
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    found = set()
    for module, path in modules().items():
        for imported, is_late in imports(path):
            a, b = package(module), package(imported)
            if a != b and level[b] >= level[a] and not (is_late and (a, b) in UPWARDS):
                found.add((module, b))
    return found


def cycles() -> list[str]:
    """Packages that reach themselves through the imports of others; imports in functions left out."""
    below: dict[str, set[str]] = {}
    for module, path in modules().items():
        found = {package(name) for name, is_late in imports(path) if not is_late}
        below.setdefault(package(module), set()).update(found - {package(module)})
    for name in below:  # the transitive closure
        for reached in below.values():
            if name in reached:
                reached |= below[name]
    return sorted(name for name, reached in below.items() if name in reached)


def private_names() -> Iterator[tuple[str, str]]:
    """Module and private name, wherever a name is used that its own package does not define and another one does."""
    trees = {module: ast.parse(path.read_text()) for module, path in modules().items()}
    defined: dict[str, set[str]] = {}
    for module, tree in trees.items():
        names = defined.setdefault(package(module), set())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    foreign = {
        name: {other for names in defined.values() for other in names if other.startswith("_")} - own
        for name, own in defined.items()
    }
    for module, tree in trees.items():
        for node in ast.walk(tree):
            used = []
            if isinstance(node, ast.Attribute):
                used = [node.attr]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pathgp"):
                used = [alias.name for alias in node.names]
            for name in used:
                if not name.startswith("__") and name in foreign[package(module)]:
                    yield module, name


def test_modules_at_the_top() -> None:
    """Everything else has a package; a new name here needs a reason."""
    assert {path.stem for path in ROOT.glob("*.py")} == TOP


def test_every_package_has_a_layer() -> None:
    assert sorted({package(module) for module in modules()}) == sorted(name for layer in LAYERS for name in layer)


def test_imports_point_downwards() -> None:
    assert sorted(upward() - {("pathgp", "pathgp")}) == []


def test_no_cycles() -> None:
    assert cycles() == []


def test_private_names_stay_in_their_package() -> None:
    assert sorted(set(private_names()) - {("operators.fused.tiles", "_version")}) == []


def test_the_check_finds_a_private_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.py").write_text("class Kernel:\n    def _hidden(self): ...\n")
    (tmp_path / "solvers.py").write_text("def f(kernel):\n    kernel._hidden()\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert list(private_names()) == [("solvers", "_hidden")]


def test_the_check_finds_a_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, imported in (("kernels", "features"), ("features", "operators"), ("operators", "kernels"), ("io", "")):
        (tmp_path / f"{name}.py").write_text(f"import pathgp.{imported}\n" if imported else "")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert cycles() == ["features", "kernels", "operators"]


def test_the_check_finds_an_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "models.py").touch()
    (tmp_path / "kernels" / "new.py").write_text("def f():\n    from pathgp.models import GP\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert upward() == {("kernels.new", "models")}
