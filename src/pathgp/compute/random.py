"""Explicit randomness: every draw comes from a generator the caller can name."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

# Numbers that a CPU draws in about a quarter of a second.
_MANY = 10_000_000


def as_generator(generator: torch.Generator | None) -> torch.Generator:
    """The given generator, or a fresh one whose ``initial_seed()`` records how to repeat the run."""
    if generator is None:
        generator = torch.Generator().manual_seed(_new_seed())
    elif not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    return generator


def _new_seed() -> int:
    """A seed from the operating system."""
    return torch.Generator().seed()


def repeating_seed(generator: torch.Generator) -> int | None:
    """The seed that repeats what ``generator`` will draw; None once it has drawn something else before."""
    seed = generator.initial_seed()
    fresh = torch.Generator(generator.device).manual_seed(seed)
    return seed if torch.equal(fresh.get_state(), generator.get_state()) else None


def spawn_generator(generator: torch.Generator, device: torch.device | None = None) -> torch.Generator:
    """A generator whose draws are independent of those of ``generator``, seeded by it."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device or generator.device).manual_seed(seed)


def normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal draws on ``device``, made where the generator lives (a CPU generator serves all).

    Large numbers of draws, which would take a CPU seconds, are made on the device from a seed of the generator.
    """
    if math.prod(shape) > _MANY and device.type != generator.device.type:
        generator = spawn_generator(generator, device)
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(device)


def permutation(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """A random permutation of range(n) on ``device``."""
    return torch.randperm(n, generator=generator, device=generator.device).to(device)


def partition(n: int, parts: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
    """range(n) at random in parts of equal size, each in ascending order: rows of a matrix are then read in order."""
    return _in_parts(permutation(n, generator, device), parts)


def neighbourhoods(X: Tensor, parts: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The rows of X (n, d) in parts of equal size, near ones together; parts in random order, each ascending.

    Space is halved again and again by planes of random directions, so that no two draws have their borders in common.
    Time O((n d + n log n) log parts).
    """
    n, levels = len(X), math.ceil(math.log2(parts))
    along = X @ normal((X.shape[1], levels), generator, X.dtype, X.device)
    size, longer = divmod(n, parts)
    order, borders = torch.arange(n, device=X.device), [0, parts]
    for level in range(levels):
        starts = [k * size + min(k, longer) for k in borders]
        sizes = torch.tensor([b - a for a, b in itertools.pairwise(starts)], device=X.device)
        cell = torch.arange(len(sizes), device=X.device).repeat_interleave(sizes, output_size=n)
        # By place along the direction, cell by cell.
        ranked = along[order, level].argsort(stable=True)
        order = order[ranked[cell[ranked].argsort(stable=True)]]
        borders = sorted({*borders, *((a + b) // 2 for a, b in itertools.pairwise(borders))})
    if X.shape[1] == 1:
        # On a line all directions are one: the borders are shifted, and one part has rows of both ends.
        order = order.roll(int(torch.randint(max(1, size), (), generator=generator, device=generator.device)))
    found = _in_parts(order, parts)
    return tuple(found[k] for k in permutation(parts, generator, torch.device("cpu")).tolist())


def _in_parts(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    """A permutation cut into parts of equal size, each in ascending order."""
    n, device = len(order), order.device
    size, longer = divmod(n, parts)
    # Made on the device, which is not waited for.
    sizes = torch.full((parts,), size, device=device)
    sizes[:longer] += 1
    owner = torch.empty(n, dtype=torch.long, device=device)
    # One stable sort by part for all of them.
    owner[order] = torch.arange(parts, device=device).repeat_interleave(sizes, output_size=n)
    return owner.argsort(stable=True).tensor_split(parts)
