"""Files that are not ours, not whole or not what they were: an error for each, and nothing in them is run."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from pathgp.compute import files
from pathgp.decisions import ThompsonSampler, read_evaluations
from saving_cases import small


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "post"
    small().save(path)
    return path.read_bytes()


def refused(path: Path, content: bytes, match: str = "pathgp|damaged|empty") -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match):
        pathgp.load(path)


def signed(body: bytes) -> bytes:
    """A file with a digest that is right."""
    return b"\x89pathgp\n" + struct.pack("<I", files.FORMAT) + hashlib.sha256(body).digest() + body


def test_every_flipped_bit_is_noticed(saved: bytes, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    places = [*range(8 * 64), *generator.choice(8 * len(saved), 1000, replace=False)]
    for place in map(int, places):
        content = bytearray(saved)
        content[place // 8] ^= 1 << place % 8
        refused(tmp_path / "post", bytes(content))


def test_every_part_is_refused(saved: bytes, tmp_path: Path) -> None:
    lengths = [*range(64), *np.linspace(64, len(saved) - 1, 200, dtype=int)]
    for length in lengths:
        refused(tmp_path / "post", saved[:length])
    refused(tmp_path / "post", saved + b"\x00", "damaged")
    refused(tmp_path / "post", b"\x00" + saved, "not a file that pathgp has saved")


def test_a_newer_format(saved: bytes, tmp_path: Path) -> None:
    newer = saved[:8] + struct.pack("<I", files.FORMAT + 1) + saved[12:]
    refused(tmp_path / "post", newer, "update pathgp")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pathgp.load(tmp_path / "nothing")


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_is_run(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    payload = pickle.dumps(Malice(evil))
    refused(tmp_path / "post", payload, "not a file that pathgp has saved")
    refused(tmp_path / "post", signed(payload))
    refused(tmp_path / "post", signed(struct.pack("<Q", len(payload)) + payload))
    torch.save({"model": Malice(evil)}, tmp_path / "torch")
    refused(tmp_path / "post", (tmp_path / "torch").read_bytes(), "not a file that pathgp has saved")
    for name in ("os.system", "torch.load", "builtins.eval", "Malice", "Checkpoint", "Solver", "__class__"):
        content = {"pathgp": "0", "device": "cpu", "model": {"$class": name, "path": str(evil)}}
        files.write(tmp_path / "post", content)
        with pytest.raises(ValueError, match="does not describe a posterior"):
            pathgp.load(tmp_path / "post")
    assert not evil.exists()


def test_a_foreign_file(tmp_path: Path) -> None:
    torch.save({"weights": torch.ones(3)}, tmp_path / "torch")
    with pytest.raises(ValueError, match="not a file that pathgp has saved"):
        pathgp.load(tmp_path / "torch")
    files.write(tmp_path / "post", {"pathgp": "0", "something": "else"})
    with pytest.raises(ValueError, match="does not describe a posterior"):
        pathgp.load(tmp_path / "post")


def test_files_of_other_kinds_are_named(saved: bytes, tmp_path: Path) -> None:
    """Every reader says what the file is, and what reads it."""
    places = {name: tmp_path / name for name in ("posterior", "fit", "sampler", "other", "empty", "torch")}
    box = np.array([[0.0, 0.0], [1.0, 1.0]])

    def fit(path: Path) -> object:
        X = torch.rand(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        new = pathgp.GP(pathgp.kernels.Matern(1.5))
        return new.fit(X, X[:, 0], steps=1, samples=1, features=8, initialise="model", checkpoint=path)

    def sample(path: Path) -> object:
        return ThompsonSampler(pathgp.GP(pathgp.kernels.Matern(1.5)), box, checkpoint=path).ask(2)

    places["posterior"].write_bytes(saved)
    fit(places["fit"])
    sample(places["sampler"])
    files.write(places["other"], {"something": "else"})
    places["empty"].touch()
    torch.save({"state": torch.ones(3)}, places["torch"])
    said = {
        "posterior": r"but a posterior of pathgp: pathgp\.load\(path\) reads it",
        "fit": r"but a checkpoint of a pathgp fit: fit\(\.\.\., checkpoint=path\) continues from it",
        "sampler": r"but a checkpoint of a ThompsonSampler: ThompsonSampler\(\.\.\., checkpoint=path\) continues",
        "other": "nor any other file of pathgp",
        "empty": "is empty: use another path",
        "torch": "is not a file that pathgp has saved",
    }
    readers = {"posterior": [pathgp.load], "fit": [fit], "sampler": [sample, read_evaluations]}
    for kind, functions in readers.items():
        for name in said.keys() - {kind}:
            for function in functions:
                before = places[name].read_bytes()
                with pytest.raises(ValueError, match=f"{re.escape(str(places[name]))} .*{said[name]}"):
                    function(places[name])
                assert places[name].read_bytes() == before


ODD: list[Any] = [None, True, -1, 0, 7, 1.5, float("nan"), "x", [], [1, 2], {}, {"$tensor": 0}, {"$again": 0}]


def test_forged_content_is_refused_or_harmless(saved: bytes, tmp_path: Path) -> None:
    """With a digest that is right: an error that says so, or a posterior of some kind."""
    (length,) = struct.unpack("<Q", saved[44:52])
    header, tensors = json.loads(saved[52 : 52 + length]), saved[52 + length :]
    generator, outcomes = np.random.default_rng(1), {"loaded": 0, "refused": 0}
    for _ in range(400):
        forged = copy.deepcopy(header)
        node: Any = forged
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[generator.integers(len(keys))]
            if not isinstance(node[key], dict | list) or not node[key] or generator.random() < 0.1:
                break
            node = node[key]
        if isinstance(node, dict) and generator.random() < 0.3:
            del node[key]
        else:
            node[key] = ODD[generator.integers(len(ODD))]
        text = json.dumps(forged).encode()
        (tmp_path / "post").write_bytes(signed(struct.pack("<Q", len(text)) + text + tensors))
        try:
            pathgp.load(tmp_path / "post")
            outcomes["loaded"] += 1
        except ValueError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 200


@pytest.mark.parametrize("kind", [["float64", [1 << 60], [0]], ["float64", [-4, -4], [0, 1]], ["complex64", [1], [0]]])
def test_tensors_that_cannot_be(kind: list[Any], tmp_path: Path) -> None:
    header = json.dumps({"byteorder": sys.byteorder, "tensors": [kind], "content": {}}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header + bytes(8)), "not its content")


@pytest.mark.parametrize("content", [[], None, {"$tensor": 0}])
def test_content_without_names(content: Any, tmp_path: Path) -> None:
    header = json.dumps({"byteorder": sys.byteorder, "tensors": [["uint8", [1], [0]]], "content": content}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header + bytes(1)), "not its content")


def test_the_other_byte_order(tmp_path: Path) -> None:
    header = json.dumps({"byteorder": "middle", "tensors": [], "content": {}}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header), "endian")
