"""The page in a real browser: nothing wrong on the console, no scrolling sideways on a phone, charts within bounds."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from pathgp import GP, LatentKroneckerGP, kernels

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: install it to look at pages in a browser")

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0"]

# What is measured inside a frame of the width of a phone or of a desk.
MEASURE = """
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, wide = page.documentElement;
  const beyond = [...page.querySelectorAll("body *")].filter(
    e => !e.closest("svg") && e.getBoundingClientRect().right > wide.clientWidth + 1);
  const cut = [...page.querySelectorAll("svg text")].filter(t => {
    const text = t.getBoundingClientRect(), chart = t.closest("svg").getBoundingClientRect();
    return text.right > chart.right + 8 || text.left < chart.left - 8 || text.bottom > chart.bottom + 4;
  });
  const result = {
    scroll: wide.scrollWidth, width: wide.clientWidth, charts: page.querySelectorAll("svg").length,
    flat: [...page.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().height < 10).length,
    columns: getComputedStyle(page.querySelector(".charts")).gridTemplateColumns.split(" ").length,
    beyond: beyond.map(e => e.outerHTML.slice(0, 80)), cut: cut.map(t => t.textContent),
    paper: getComputedStyle(page.body).backgroundColor,
  };
  document.getElementById("found").textContent = JSON.stringify(result);
});
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages with everything on them: a table and a grid."""
    folder = tmp_path_factory.mktemp("pages")
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    X = rng.uniform(size=(200, 4)) * 1e5
    X[:, 3] = np.arange(200) % 4
    y = 1e4 * np.sin(X[:, 0] / 2e4) + 1e3 * rng.normal(size=200)
    gp = GP(kernels.Scale(kernels.Matern(1.5, torch.ones(4))), noise=0.3, standardise=True)
    report = gp.fit(X[:120], y[:120], steps=4, samples=8, features=64, estimator="pathwise", generator=generator)
    names = ["an input with a rather long name, as they occur", "b", "c", "a_name_without_any_place_to_break_it_in_two"]
    gp.posterior.to_html(
        folder / "table.html",
        X[120:],
        y[120:],
        names,
        "yield of winter wheat in kilogrammes per hectare and year",
        report,
    )
    Y = np.sin(np.indices((9, 12)).sum(0) / 2.0)
    Y[2:5, 3:6] = np.nan
    grid = LatentKroneckerGP([kernels.Matern(1.5, 3.0), kernels.Matern(1.5, 3.0)], noise=0.1)
    grid.condition([None, None], Y, samples=8, generator=generator).to_html(folder / "grid.html")
    return {name: folder / f"{name}.html" for name in ("table", "grid")}


def browse(folder: Path, target: Path, *flags: str) -> str:
    """Run the browser on a file in a fresh profile; what it prints. Nothing may be on the console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, target.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    return done.stdout


def measured(folder: Path, page: Path, width: int, *flags: str) -> dict[str, object]:
    frame = folder / "frame.html"
    inside = html.escape(page.read_text(encoding="utf-8"), quote=True)
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>{MEASURE}</script>'
        f'<iframe srcdoc="{inside}" style="border:0;width:{width}px;height:800px"></iframe><pre id="found"></pre>',
        encoding="utf-8",
    )
    shown = browse(folder, frame, "--dump-dom", "--window-size=1400,900", *flags)
    found = re.search(r'<pre id="found">(.*?)</pre>', shown, flags=re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found.group(1)))


@pytest.mark.parametrize(("width", "columns"), [(375, 1), (1200, 3)], ids=["phone", "desk"])
def test_a_table_fits(pages: dict[str, Path], tmp_path: Path, width: int, columns: int) -> None:
    found = measured(tmp_path, pages["table"], width)
    assert found["scroll"] == found["width"] == width
    assert (found["beyond"], found["cut"], found["flat"]) == ([], [], 0)
    assert found["charts"] == 12  # three of accuracy, one of relevance, four effects, four of learning
    assert found["columns"] == columns


def test_a_grid_fits_on_a_phone(pages: dict[str, Path], tmp_path: Path) -> None:
    found = measured(tmp_path, pages["grid"], 375)
    assert found["scroll"] == 375
    assert (found["beyond"], found["cut"], found["flat"]) == ([], [], 0)


def test_dark_follows_the_reader(pages: dict[str, Path], tmp_path: Path) -> None:
    assert measured(tmp_path, pages["grid"], 375)["paper"] == "rgb(255, 255, 255)"
    dark = measured(tmp_path, pages["grid"], 375, "--blink-settings=preferredColorScheme=0")
    assert dark["paper"] == "rgb(19, 20, 25)"


def test_it_prints_a_section_per_page(pages: dict[str, Path], tmp_path: Path) -> None:
    browse(tmp_path, pages["table"], f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    pages_printed = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert 5 <= pages_printed <= 8


def test_a_screenshot_shows_something(pages: dict[str, Path], tmp_path: Path) -> None:
    browse(tmp_path, pages["table"], f"--screenshot={tmp_path / 'page.png'}", "--window-size=1200,2000")
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 50_000  # an empty page of this size takes a tenth of it
