"""Feature maps: callables phi with E[phi(x) . phi(z)] = k(x, z)."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pathgp.features.exact import ExactMap
from pathgp.features.frequencies import Frequencies
from pathgp.features.stochastic import RandomMap, draw_seed
from pathgp.features.waves import tiled
from pathgp.kernels import Finite, Kernel, Periodic, Stationary, Tanimoto
from pathgp.kernels.base import as_inputs
from pathgp.kernels.expression import Term, expand
from pathgp.kernels.sphere import Embedding, has_sphere


class FeatureMap:
    """Features of a kernel: ``phi(X)`` is (n, phi.num), or (s, n, phi.num) with ``paths=s`` independent draws.

    The map refers to its kernel and holds frozen draws: it follows the hyperparameters, smoothly.
    ``copy.deepcopy(phi)`` is a snapshot, its kernel included. The draws are made in float64 on the CPU and
    are the same on every device and in every dtype. Build it with ``kernel.features(num)``.

    Attributes:
        kernel: the kernel it belongs to, by reference.
        num: the number of features, at most the number asked for.
        paths: the number of independent draws, or None for one map without a leading dimension.
        seed: the seed of the draws.
    """

    def __init__(
        self,
        kernel: Kernel,
        num: int,
        generator: torch.Generator | None = None,
        paths: int | None = None,
        dim: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if num < 1 or (paths is not None and paths < 1):
            raise ValueError(f"num and paths must be at least 1, got {num} and {paths}")
        self.kernel = kernel
        self.paths = paths
        if seed is None:
            seed = secrets.randbits(63) if generator is None else draw_seed(generator)
        self.seed = seed
        self._arguments: dict[str, Any] = {"num": num, "seed": seed, "paths": paths, "dim": dim}
        self._origin = {name: value.clone() for name, value in kernel.state_dict().items()}
        self._embedding = _embed(kernel, dim)
        terms = expand(kernel if self._embedding is None else self._embedding.kernel)
        if self._embedding is not None:
            dim = self._embedding.dim
        leaves = [leaf for term in terms for leaf in term.leaves]
        for leaf in leaves:
            _require_features(leaf.kernel)
        seen = [leaf.columns for term in expand(kernel) for leaf in term.leaves]
        self._columns = max((max(columns) + 1 for columns in seen if columns), default=1)
        source = torch.Generator().manual_seed(seed)
        self.terms = _build_maps(terms, num, dim, 1 if paths is None else paths, source)
        # The maps are not in the order of the expansion: finite ones come first.
        self._numbers = [next(i for i, term in enumerate(terms) if term is part.term) for part in self.terms]
        self.num = sum(term.num for term in self.terms)

    def state(self) -> dict[str, Any]:
        """The arguments and draws of the map, in numbers and tensors, for ``from_state``.

        It contains the draws themselves, so that it does not depend on how a version of torch draws. Those of Tanimoto
        kernels are the exception: they are repeated from seeds.
        """
        draws = [(f.normal, f.uniform, f.weight) for f in self._frequencies()]
        return {**self._arguments, "origin": self._origin, "draws": draws}

    @classmethod
    def from_state(cls, kernel: Kernel, state: dict[str, Any]) -> FeatureMap:
        """The map with this ``state()``, for a kernel of the same structure."""
        current = {name: value.clone() for name, value in kernel.state_dict().items()}
        # The hyperparameters at construction determine which harmonics a periodic kernel keeps.
        kernel.load_state_dict(state["origin"])
        try:
            phi = cls(kernel, state["num"], paths=state["paths"], dim=state["dim"], seed=state["seed"])
        finally:
            kernel.load_state_dict(current)
        for frequencies, draws in zip(phi._frequencies(), state["draws"], strict=True):
            frequencies.normal, frequencies.uniform, frequencies.weight = draws
        return phi

    @property
    def suffices(self) -> bool:
        """Whether the map has enough harmonics for the present length scales of periodic kernels."""
        return all(term.harmonics is None or term.harmonics.suffices for term in self.terms)

    def rebuild(self, generator: torch.Generator) -> tuple[FeatureMap, Tensor]:
        """A map for the present hyperparameters, with the draws of this one for all features that stay.

        Also returns for every feature its number in this map, -1 for a new one: (num,).
        """
        num, dim = self._arguments["num"], self._arguments["dim"]
        phi = FeatureMap(self.kernel, num, generator, self.paths, dim)
        places, start = [], 0
        for before, after in zip(self.terms, phi.terms, strict=True):
            if isinstance(before, RandomMap) and isinstance(after, RandomMap):
                after.adopt(before)
            known = {label: start + i for i, label in enumerate(before.labels())}
            places += [known.get(label, -1) for label in after.labels()]
            start += before.num
        return phi, torch.tensor(places)

    def __call__(self, X: Tensor) -> Tensor:
        """The features at X: (n, num), or (s, n, num) for a map with paths. Differentiable in X."""
        X = self._inputs(X)
        parts = [term(X).expand(1 if self.paths is None else self.paths, -1, -1) for term in self.terms]
        result = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
        return result[0] if self.paths is None else result

    def weighted(self, X: Tensor, W: Tensor, only: Collection[int] | None = None) -> Tensor:
        """The functions sum_f phi_j(x)_f W[j, f] at X: (s, n), for weights W (s, num). Differentiable in X.

        The (s, n, num) features are never stored, not for gradients either. Time O(n s num). ``only``: sum over the
        features of these terms of the kernel, counted as in `expand`; the parts of all terms add up to the whole.
        """
        X = self._inputs(X)
        if W.ndim != 2 or W.shape[1] != self.num or (self.paths is not None and W.shape[0] != self.paths):
            rows = "s" if self.paths is None else self.paths
            raise ValueError(f"the weights must have shape ({rows}, {self.num}), got {tuple(W.shape)}")
        parts = zip(self._numbers, self.terms, W.to(X).split([term.num for term in self.terms], 1), strict=True)
        chosen = (self._weighted(term, X, weights) for i, term, weights in parts if only is None or i in only)
        return reduce(torch.add, chosen)

    def weighted_at(self, X: Tensor, W: Tensor, paths: Tensor) -> Tensor:
        """The functions of some paths, each at its own points: sum_f phi_j(X[j, i])_f W[j, f], (p, q).

        X: (p, q, d), the points of every path.  W: the weights of these paths (p, num).  paths: their numbers (p,), on
        the CPU. Differentiable in X. Time O(p q num); the (p, q, num) features are never stored.
        """
        assert self.paths is not None
        X = self._inputs(X.flatten(0, 1)).unflatten(0, X.shape[:2])
        parts = zip(self.terms, W.to(X).split([term.num for term in self.terms], 1), strict=True)
        return reduce(torch.add, (self._weighted_at(term, X, weights, paths) for term, weights in parts))

    def _frequencies(self) -> list[Frequencies]:
        maps = [term for term in self.terms if isinstance(term, RandomMap)]
        return [f for term in maps for f in term.frequencies + term.circle_frequencies]

    def _inputs(self, X: Tensor) -> Tensor:
        X = as_inputs(X, "X")
        if X.shape[1] < self._columns:
            raise ValueError(f"the kernel acts on column {self._columns - 1}, but X has only {X.shape[1]} columns")
        return X if self._embedding is None else self._embedding(X)

    def _weighted(self, term: ExactMap | RandomMap, X: Tensor, W: Tensor) -> Tensor:
        if self.paths is None or isinstance(term, ExactMap):
            return tiled(lambda part: W @ term(part)[0].T, [X], term.num)
        if W.requires_grad:
            # The faster method below uses amplitude and phase, which have no derivative at weights of zero.
            return tiled(lambda part: torch.einsum("snf,sf->sn", term(part), W), [X], W.numel())
        return term.weighted(X, W)

    def _weighted_at(self, term: ExactMap | RandomMap, X: Tensor, W: Tensor, paths: Tensor) -> Tensor:
        if isinstance(term, RandomMap):
            return term.weighted_at(X, W, paths)
        p, q, _ = X.shape
        owner = torch.arange(p, device=X.device).repeat_interleave(q)

        def contract(part: Tensor, own: Tensor) -> Tensor:
            return (term(part)[0] * W[own]).sum(1).unsqueeze(0)

        return tiled(contract, [X.flatten(0, 1), owner], 2 * term.num).view(p, q)


def _build_maps(
    terms: list[Term], num: int, dim: int | None, paths: int, source: torch.Generator
) -> list[ExactMap | RandomMap]:
    """One map per term: finite maps get the features they need, then the other terms share the rest equally."""
    maps: list[ExactMap | RandomMap] = []
    order = sorted(terms, key=lambda term: (bool(term.of(Stationary, Tanimoto)), bool(term.of(Periodic))))
    for i, term in enumerate(order):
        share = num - sum(part.num for part in maps)
        if term.of(Stationary, Tanimoto, Periodic):
            share //= len(order) - i
        exact = None if term.of(Stationary, Tanimoto) else ExactMap(term, share, dim)
        maps.append(exact if exact is not None and exact.is_exact else RandomMap(term, share, dim, paths, source))
    return maps


def _embed(kernel: Kernel, dim: int | None) -> Embedding | None:
    """The kernel on X and points on spheres, for inputs with ``dim`` columns; None without `Sphere`."""
    if not has_sphere(kernel):
        return None
    columns = [leaf.columns for term in expand(kernel) for leaf in term.leaves]
    if dim is None and any(seen is None for seen in columns):
        if len(columns) > 1:
            raise ValueError("give dim, the number of columns of X, to features(), or active_dims to all kernels")
        dim = 2
    return Embedding(kernel, dim or 1 + max(max(seen or ()) for seen in columns))


def _require_features(kernel: Kernel) -> None:
    has_measure = isinstance(kernel, Stationary) and type(kernel).mixing is not Stationary.mixing
    if not has_measure and not isinstance(kernel, Finite | Periodic | Tanimoto):
        raise NotImplementedError(
            f"{type(kernel).__name__} has no random features, because {kernel.no_features}; means, variances by solves "
            "and joint draws (post.sample) need none"
        )
