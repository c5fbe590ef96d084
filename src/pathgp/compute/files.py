"""Files of plain types and tensors: written atomically, read without running anything, checked by a digest.

    8 bytes   the mark of the format                    4 bytes   its number, little-endian
    32 bytes  SHA-256 of all that follows               8 bytes   length of the header, little-endian
    the header, JSON in UTF-8: the tensors' dtypes and shapes, and the content with numbers in place of tensors
    the tensors, one after the other, as they lie in memory

Such a file holds no code: its reader decides what the plain types mean. The digest detects corruption, not tampering;
a forged file can hold wrong numbers, but cannot run anything.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import struct
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

try:
    import fcntl
except ImportError:  # not on Windows: unfinished files stay there until they are removed by hand
    fcntl = None  # type: ignore[assignment]

# Increase this number if earlier versions could not read, or would misread, new files.
FORMAT = 1

_MARK = b"\x89pathgp\n"  # the first byte is no text, the last is altered by a transfer as text
_KINDS = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _KINDS}
_TENSOR = "$tensor"
# The kinds of files by the name that marks their content: what such a file is, and what reads it.
_CONTENTS = {
    "pathgp": ("a posterior of pathgp", "pathgp.load(path) reads it"),
    "pathgp checkpoint": ("a checkpoint of a pathgp fit", "fit(..., checkpoint=path) continues from it"),
    "pathgp thompson": (
        "a checkpoint of a ThompsonSampler",
        "ThompsonSampler(..., checkpoint=path) continues from it, pathgp.decisions.read_evaluations(path) reads values",
    ),
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` on success: readers find the old file or the new one, never a part.

    Written beside ``path`` under a unique name, since processes on several machines may write concurrently, then
    flushed to disk and renamed. Missing folders are created. A file left unfinished by a killed process is removed by
    the next one that writes to ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    neighbour, file = _open_neighbour(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, path)
    finally:
        neighbour.unlink(missing_ok=True)


def _open_neighbour(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``path``, locked for as long as it is open."""
    while True:
        neighbour = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        file = neighbour.open("wb")
        _lock(file)
        # Before it was locked, another process may have removed it as abandoned.
        if neighbour.exists():
            return neighbour, file
        file.close()


def _remove_abandoned(path: Path) -> None:
    """Remove unfinished files beside ``path`` that no process has locked: locks end with their process."""
    for neighbour in path.parent.glob(f"{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp"):
        # It fails if the file is already removed, or that is not permitted: nothing depends on it.
        with suppress(OSError), neighbour.open("rb+") as file:
            if _lock(file):
                neighbour.unlink()


def _lock(file: BinaryIO) -> bool:
    """Lock a file for this process until it is closed; False if another process holds it or locks are unavailable."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write dicts with names, lists, numbers, strings, None and tensors; memory O(largest tensor) beside them."""
    numbers: dict[int, int] = {}
    tensors: list[Tensor] = []
    kinds: list[tuple[str, list[int], list[int]]] = []

    def number(tensor: Any) -> dict[str, int]:
        """What the header has in place of a tensor; the same tensor gets the same number."""
        dtype = str(tensor.dtype).removeprefix("torch.") if isinstance(tensor, Tensor) else ""
        if dtype not in _DTYPES:
            raise TypeError(f"{dtype or type(tensor).__name__} has no place in a file")
        if id(tensor) not in numbers:
            numbers[id(tensor)] = len(tensors)
            # Stored with the largest stride first, and the order is kept: products of the same numbers differ in the
            # last digit between rows and columns first.
            order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
            tensors.append(tensor.detach().permute(order))
            kinds.append((dtype, list(tensors[-1].shape), order))
        return {_TENSOR: numbers[id(tensor)]}

    tree = json.dumps(content, default=number)
    header = f'{{"byteorder": "{sys.byteorder}", "tensors": {json.dumps(kinds)}, "content": {tree}}}'.encode()
    digest = hashlib.sha256()
    with replacing(path) as file:

        def add(part: Any) -> None:
            digest.update(part)
            file.write(part)

        file.write(_MARK + struct.pack("<I", FORMAT) + bytes(digest.digest_size))
        add(struct.pack("<Q", len(header)) + header)
        for tensor in tensors:
            add(tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().data)
        file.seek(len(_MARK) + 4)
        file.write(digest.digest())


def read(path: str | os.PathLike[str], kind: str | None = None) -> dict[str, Any]:
    """Read what `write` wrote, tensors on the CPU with the same strides; ValueError for any other file.

    Reads the file twice: the digest is checked before anything else is parsed. ``kind``: the mark of the files
    to accept, one of `_CONTENTS`; None accepts all.
    """
    content = _read_any(path)
    if kind is not None and kind not in content:
        held = [f"but {what}: {how}" for mark, (what, how) in _CONTENTS.items() if mark in content]
        words = held[0] if held else "nor any other file of pathgp"
        raise ValueError(f"{os.fspath(path)} is not {_CONTENTS[kind][0]}, {words}")
    return content


def _read_any(path: str | os.PathLike[str]) -> dict[str, Any]:
    path = Path(path)
    with path.open("rb") as file:
        mark, number, expected = file.read(len(_MARK)), file.read(4), file.read(hashlib.sha256().digest_size)
        if not mark:
            raise ValueError(f"{path} is empty: use another path")
        if mark != _MARK:
            problem = f"{path} is not a file that pathgp has saved, or its beginning is damaged"
            raise ValueError(f"{problem}: use another path")
        if (version := int.from_bytes(number, "little")) > FORMAT:
            formats = f"{path} has file format {version}, this version of pathgp reads {FORMAT}"
            raise ValueError(f"{formats}: update pathgp, unless the file is damaged")
        start = file.tell()
        if version < FORMAT or hashlib.file_digest(file, "sha256").digest() != expected:
            raise ValueError(f"{path} is damaged: its content does not match its digest. Fetch or save it again")
        end = file.seek(0, os.SEEK_END)
        file.seek(start)
        try:
            return _read(file, end)
        except Exception as error:
            raise ValueError(f"{path} has the digest of a file of pathgp but not its content: {error!r}") from error


def _read(file: BinaryIO, end: int) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", file.read(8))
    text = file.read(min(length, end))
    header = json.loads(text)
    if header["byteorder"] != sys.byteorder:
        raise ValueError(f"its numbers are {header['byteorder']}-endian, those of this machine are not")
    tensors = []
    for name, shape, order in header["tensors"]:
        dtype = _DTYPES[name]
        count = dtype.itemsize * math.prod(shape)
        # Checked before memory is allocated.
        if min(shape, default=0) < 0 or count > end - file.tell():
            raise ValueError(f"a tensor of shape {shape} is longer than the file")
        dense = torch.empty(shape, dtype=dtype)
        if count:
            file.readinto(dense.flatten().view(torch.uint8).numpy().data)  # type: ignore[attr-defined]
        tensors.append(dense.permute([order.index(i) for i in range(len(order))]))
    if file.tell() != end:
        raise ValueError("there is more in it than its header says")
    content = json.loads(text, object_hook=lambda x: tensors[x[_TENSOR]] if x.keys() == {_TENSOR} else x)["content"]
    if not isinstance(content, dict):
        raise TypeError(f"its content is {type(content).__name__}, not names with values")
    return content
