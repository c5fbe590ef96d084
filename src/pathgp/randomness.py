"""Explicit randomness: every draw comes from a generator the caller can name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Numbers that a CPU draws in about a quarter of a second.
_MANY = 10_000_000


def as_generator(generator: torch.Generator | None) -> torch.Generator:
    """The given generator, or a fresh one whose ``initial_seed()`` records how to repeat the run."""
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    elif not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(generator).__name__}")
    return generator


def repeating_seed(generator: torch.Generator) -> int | None:
    """The seed that repeats what ``generator`` will draw; None once it has drawn something else before."""
    seed = generator.initial_seed()
    fresh = torch.Generator(generator.device).manual_seed(seed)
    return seed if torch.equal(fresh.get_state(), generator.get_state()) else None


def offspring(generator: torch.Generator, device: torch.device | None = None) -> torch.Generator:
    """A generator whose numbers have nothing to do with those that others drew from the same seed."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    return torch.Generator(device or generator.device).manual_seed(seed)


def normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal draws on ``device``, made where the generator lives (a CPU generator serves all).

    So many that a CPU would take seconds over them are made on the device, from a seed that the generator gives.
    """
    if math.prod(shape) > _MANY and device.type != generator.device.type:
        generator = offspring(generator, device)
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device).to(device)


def permutation(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """A random permutation of range(n) on ``device``."""
    return torch.randperm(n, generator=generator, device=generator.device).to(device)


def partition(n: int, parts: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
    """range(n) at random in parts of equal size, each in ascending order: rows of a matrix are then read in order."""
    size, longer = divmod(n, parts)
    sizes = torch.full((parts,), size, device=device)
    sizes[:longer] += 1
    owner = torch.empty(n, dtype=torch.long, device=device)
    numbers = torch.arange(parts, device=device).repeat_interleave(sizes, output_size=n)
    # One stable sort by part for all of them.
    owner[permutation(n, generator, device)] = numbers
    return owner.argsort(stable=True).tensor_split(parts)
