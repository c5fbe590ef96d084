"""Tiles of fused kernels: what fits, what is fastest, and where it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pathgp import Compute, kernels
from pathgp.operators import KernelOperator
from pathgp.operators.fused import engine, fallback_reason, tiles

pytest.importorskip("triton", minversion="3.6")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CANDIDATES = [tiles.Tile(), tiles.Tile(columns=32), tiles.Tile(64, 32, 4)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiles._measured.cache_clear()
    yield tmp_path
    tiles._measured.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tiles.Tile]:
    """Tiles in the order in which they were timed; the smaller, the faster."""
    order: list[tiles.Tile] = []

    def seconds(action: object, device: torch.device) -> float:
        tile = action.args[0]  # type: ignore[attr-defined]
        action()  # type: ignore[operator]
        order.append(tile)
        return float(tile.rows * tile.columns)

    monkeypatch.setattr(tiles, "_seconds", seconds)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a chip")
    return order


def choose(name: str = "a product") -> tiles.Tile:
    return tiles.fastest(name, CANDIDATES, lambda: lambda tile: None, DEVICE)


def test_measured_once(measured: list[tiles.Tile]) -> None:
    assert choose() == CANDIDATES[2]
    assert choose() == CANDIDATES[2]
    assert measured == CANDIDATES


def test_remembered_by_the_next_process(measured: list[tiles.Tile], monkeypatch: pytest.MonkeyPatch) -> None:
    choose()
    choose("another")
    tiles._measured.cache_clear()
    assert choose() == choose("another") == CANDIDATES[2]
    assert len(measured) == 2 * len(CANDIDATES)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another chip")
    choose()
    assert len(measured) == 3 * len(CANDIDATES)


@pytest.mark.parametrize("text", ["", "[1]", '{"a chip, a product": 3}', '{"a chip, a product": [1, 2, 3, 4, 5]}'])
def test_a_damaged_file_is_written_anew(measured: list[tiles.Tile], text: str) -> None:
    choose()
    tiles._file().write_text(text)
    tiles._measured.cache_clear()
    assert choose() == CANDIDATES[2]
    tiles._measured.cache_clear()
    choose()
    assert len(measured) == 2 * len(CANDIDATES)


def test_a_folder_that_cannot_be_written_to(measured: list[tiles.Tile], cache: Path) -> None:
    (cache / "pathgp").write_text("a file where a folder should be")
    assert choose() == choose() == CANDIDATES[2]
    assert measured == CANDIDATES


def test_nobody_has_a_home(measured: list[tiles.Tile], monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert choose() == choose() == CANDIDATES[2]
    assert measured == CANDIDATES


def test_what_others_have_found_meanwhile_stays(measured: list[tiles.Tile]) -> None:
    choose()
    found = tiles._file().read_text()
    tiles._file().write_text(found.replace("a product", "of another process"))
    choose("another")
    assert set(tiles._read()) == {f"a chip, {name}" for name in ("a product", "another", "of another process")}


def test_the_first_is_kept_unless_another_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a chip")
    times = iter([1.0, 0.98, 1.1, 1.0, float("inf"), 0.96])
    monkeypatch.setattr(tiles, "_seconds", lambda action, device: next(times))
    assert choose() == CANDIDATES[0]
    assert choose("another") == CANDIDATES[2]


@pytest.mark.parametrize("memory", [200_000, 87_000, 43_000])
def test_products_with_the_fastest_tile(
    measured: list[tiles.Tile], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chip that nothing is known about, with little memory, too: the values are the same."""
    monkeypatch.setattr(engine, "known", lambda device: False)
    monkeypatch.setattr(engine, "_WORTHWHILE", 0)
    monkeypatch.setattr(tiles, "shared_memory", lambda device: memory)
    generator = torch.Generator().manual_seed(0)
    X, V = (torch.randn(70, columns, generator=generator).to(DEVICE) for columns in (9, 3))
    kernel = kernels.Scale(kernels.Matern(1.5, 2.0), 1.2)
    H = KernelOperator(kernel, X, 0.3, Compute("fused"))
    exact = KernelOperator(kernel, X.double(), 0.3, Compute("dense"))
    assert float((H @ V - exact @ V.double()).norm() / (exact @ V.double()).norm()) < 2e-6
    products = len(measured)
    assert products == len(set(measured)) > 0
    H.bilinear(V, V).backward()
    found = [p.grad for p in kernel.parameters()]
    kernel.zero_grad()
    exact.bilinear(V.double(), V.double()).backward()
    for grad, p in zip(found, kernel.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-6)
    assert len(measured) > products
    assert all(tile in tiles._TILES for tile in measured)


def test_too_wide_for_a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has room on one chip is streamed on another."""
    X, kernel = torch.randn(30, 100, device=DEVICE), kernels.Matern(1.5, 9.0)
    assert not fallback_reason(kernel, X)
    monkeypatch.setattr(tiles, "shared_memory", lambda device: 40_000)
    assert "128 prepared columns" in fallback_reason(kernel, X)
    assert not fallback_reason(kernel, X[:, :9])


@pytest.mark.skipif(DEVICE.type == "cpu", reason="times tiles on a GPU")
def test_a_gpu_finds_its_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "known", lambda device: False)
    monkeypatch.setattr(engine, "_WORTHWHILE", 0)
    X, V = torch.randn(20_000, 9, device=DEVICE), torch.randn(20_000, 65, device=DEVICE)
    H = KernelOperator(kernels.Matern(1.5, 2.0), X, 0.3, Compute("fused"))
    expected = H @ V
    assert len(tiles._measured()) == 1
    assert tiles._file().exists()
    assert torch.equal(H @ V, expected)
