"""The demo, small: it says what it did, writes a picture and repeats itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathgp.cli import demo, main


def run(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["demo", "--points", "300", "--seed", "3", "--out", str(path)]) == 0
    return capsys.readouterr().out.splitlines()


def test_draws_and_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (run(tmp_path / name, capsys) for name in ("a.png", "b.png"))
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert f"wrote {tmp_path / 'a.png'}" in first
    timed = ("seconds", "wrote")
    assert [line for line in first if not line.startswith(timed)] == [
        line for line in second if not line.startswith(timed)
    ]


def test_refuses_a_picture_in_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "new" / "a.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert main(["demo"]) == 1
    assert "pathgp[plots]" in capsys.readouterr().err
