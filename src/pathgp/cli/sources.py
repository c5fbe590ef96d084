"""Where the bytes of a table come from: a file, standard input or another pipe, plain or compressed."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from pathgp.cli.output import print_note

STANDARD_INPUT = Path("-")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Source:
    """Bytes that can be read several times. name: for messages.  reopen: a function that opens them at their start."""

    name: str
    reopen: Callable[[], BinaryIO]

    def mark(self) -> bytes:
        """The first four bytes, which tell the format."""
        with self.reopen() as file:
            return file.read(4)

    @contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], Callable[[], float]]]:
        """Open the decompressed bytes; the second result returns the share of the source that has been read."""
        mark = self.mark()
        with self.reopen() as file:
            size = max(1, os.fstat(file.fileno()).st_size)
            with self._decompress(file, mark) as decompressed:
                yield decompressed, lambda: file.tell() / size

    def _decompress(self, file: BinaryIO, mark: bytes) -> IO[bytes]:
        if mark.startswith(_GZIP):
            return cast(IO[bytes], gzip.open(file))
        if mark != _ZSTD:
            return file
        try:
            from pyarrow import CompressedInputStream
        except ImportError:
            raise ValueError(
                f"{self.name} is compressed with zstd, which needs pyarrow: pip install 'pathgp[parquet]'"
            ) from None
        return cast(IO[bytes], CompressedInputStream(file, "zstd"))


def open_source(path: Path) -> Source:
    """Open a file, or standard input for "-". A pipe is copied to a temporary file first, since it is read twice."""
    if path == STANDARD_INPUT:
        if sys.stdin.isatty():
            print_note("reading standard input: end it with Ctrl-D")
        return Source("standard input", _copy_to_disk(sys.stdin.buffer))
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file")
    if path.exists() and not path.is_file():
        with path.open("rb") as pipe:
            return Source(str(path), _copy_to_disk(pipe))
    return Source(path.name, lambda: path.open("rb"))


def name_predictions(path: Path) -> Path:
    """The default file for predictions, in the working folder: data/new.csv.gz gives new_predictions.csv."""
    if path == STANDARD_INPUT:
        return Path("predictions.csv")
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return Path(f"{Path(name).stem}_predictions.csv")


def _copy_to_disk(pipe: BinaryIO) -> Callable[[], BinaryIO]:
    """Copy a pipe to a temporary file, which exists as long as the returned function, which opens it."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(pipe, copy)
    copy.flush()

    def reopen() -> BinaryIO:
        copy.seek(0)
        return os.fdopen(os.dup(copy.fileno()), "rb")

    return reopen
