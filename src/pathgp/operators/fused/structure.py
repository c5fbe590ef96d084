"""What the source of a fused kernel depends on: the tree of a kernel's expression and its leaves."""

from __future__ import annotations

from typing import NamedTuple

from pathgp.operators.fused.expression import Node

# Bits of counts that are read and multiplied at a time, and how many of its rows' a program holds in shared memory.
LEVELS = 256
HELD_LEVELS = 2048


class Leaf(NamedTuple):
    """kind: the profile.  form: as above.  columns: of the prepared points; 0 for levels.

    width: columns padded to a power of two.  offset: the first column, of the float32 points for differences and
    double, of the half-precision points or of the bits otherwise.  norm: the row of |high|^2, or of the sums of counts.
    shape: the place of its shape parameter, or -1.  levels: bits of counts, with zeros behind.
    """

    kind: str
    form: str
    columns: int
    width: int
    offset: int
    norm: int
    shape: int
    levels: int

    @property
    def fine_parts(self) -> int:
        """float32 numbers that make up a coordinate."""
        return {"differences": 1, "double": 2}.get(self.form, 0)

    @property
    def parts(self) -> int:
        """Half-precision numbers that make up a coordinate."""
        return {"coarse": 1, "split": 2, "triple": 3}.get(self.form, 0)


class Structure(NamedTuple):
    """All that the source depends on. width: columns of the half-precision points.  numbers: of the tree."""

    tree: Node
    leaves: tuple[Leaf, ...]
    width: int
    numbers: int

    @property
    def levels(self) -> int:
        """Bits of all leaves."""
        return sum(leaf.levels for leaf in self.leaves)

    @property
    def parts(self) -> int:
        """The most half-precision numbers that make up a coordinate."""
        return max(2, *(leaf.parts for leaf in self.leaves))

    def floor(self, leaf: int) -> int:
        """Where theta holds the squared distance below which points count as equal."""
        return 1 + self.numbers + leaf

    def gain(self, leaf: int) -> int:
        """Where theta holds the factor that brings the leaf's gradients into the range of half precision."""
        return 1 + self.numbers + len(self.leaves) + leaf

    def coefficient(self) -> int:
        """Where theta holds the coefficient of K."""
        return 1 + self.numbers + 2 * len(self.leaves)

    def pulled(self) -> list[int]:
        """The first column of every leaf in the result of ``pull``, and their number."""
        starts = [0]
        for leaf in self.leaves:
            starts.append(starts[-1] + leaf.width)
        return starts
