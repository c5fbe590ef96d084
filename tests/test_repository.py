"""What the files around the package say about it is true."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from pathgp._version import __version__

ROOT = Path(__file__).parent.parent


def test_one_version_everywhere() -> None:
    assert version("pathgp") == __version__
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_changelog_has_a_place_for_this_version() -> None:
    heading = "Unreleased" if "dev" in __version__ else __version__
    assert f"## [{heading}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
