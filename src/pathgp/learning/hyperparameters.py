"""The hyperparameters of a model by name: what is learned, within which limits, under which prior."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pathgp.kernels.parameters import Positive


def hyperparameters(model: nn.Module) -> dict[str, Positive | nn.Parameter]:
    """Every hyperparameter of a model under a short unique name: noise, signal, lengthscale, 1.period, ...

    The name is the place in the kernel without the words that all share: the parts of a sum or product are numbered.
    """
    found: dict[str, Positive | nn.Parameter] = {}
    for path, module in model.named_modules():
        if isinstance(module, Positive):
            found[path] = module
            continue
        for name, parameter in module.named_parameters(recurse=False):
            found[f"{path}.{name}" if path else name] = parameter
    named = dict(zip(_shorten(found), found.values(), strict=True))
    # Kernels first, then noise and mean.
    return dict(sorted(named.items(), key=lambda item: item[0].split(".")[0] in ("noise", "mean")))


def value_of(parameter: Positive | nn.Parameter) -> Tensor:
    """The value, without gradient."""
    return (parameter.value if isinstance(parameter, Positive) else parameter).detach()


def values(model: nn.Module) -> dict[str, Tensor]:
    """The values of all hyperparameters, float64 on the CPU."""
    return {name: value_of(p).cpu().clone() for name, p in hyperparameters(model).items()}


def matching(model: nn.Module, name: str) -> dict[str, Positive | nn.Parameter]:
    """The hyperparameters called ``name``: the one with this full name, or all whose last word it is."""
    known = hyperparameters(model)
    if name in known:
        return {name: known[name]}
    found = {full: p for full, p in known.items() if full.split(".")[-1] == name}
    if not found:
        raise ValueError(f"no hyperparameter is called {name!r}: there are {', '.join(known)}")
    return found


def log_prior(model: nn.Module) -> Tensor:
    """The log density of the priors of all learned hyperparameters: zero without priors."""
    total = torch.zeros((), dtype=torch.float64)
    for parameter in model.modules():
        if isinstance(parameter, Positive) and parameter.prior is not None and parameter.raw.requires_grad:
            total = total + parameter.prior.log_density(parameter.value).cpu()
    return total


def description(model: nn.Module) -> str:
    """What a model is made of and what may be learned, in words: everything but the values of what is learned."""
    plain, rules = copy.deepcopy(model), []
    for name, parameter in hyperparameters(plain).items():
        raw = parameter.raw if isinstance(parameter, Positive) else parameter
        rules += [] if raw.requires_grad else [f"{name} fixed at {value_of(parameter).tolist()}"]
        if isinstance(parameter, Positive):
            rules += [f"{name} within {parameter.bounds}"] if parameter.bounds else []
            rules += [f"{name} under {parameter.prior}"] if parameter.prior else []
            parameter.assign(1.0)
        else:
            parameter.detach().zero_()
    return ", ".join([repr(plain), *rules])


# Largest distance of a logarithm from zero: squares of the values stay within the range of float64. A line search along
# a hyperparameter without bounds may ask for more.
_LARGEST_LOG = 300.0
# Where softplus(x) = x to nine digits. Steps of the thesis, 100 of 0.1 from values of one, stay below.
_IDENTITY = 20.0


class Coordinates:
    """The learned hyperparameters as one vector: logarithms of positive ones, others in multiples of a unit.

    Steps and gradients are compared here: a length scale that runs off to infinity moves by factors, not by sums.
    """

    def __init__(self, model: nn.Module, units: dict[nn.Parameter, float]) -> None:
        known = hyperparameters(model).values()
        self.positive = [p for p in known if isinstance(p, Positive) and p.raw.requires_grad]
        self.free = [(p, units.get(p, 1.0)) for p in known if isinstance(p, nn.Parameter) and p.requires_grad]
        self.parameters = [*(p.raw for p in self.positive), *(p for p, _ in self.free)]

    def units(self) -> list[Tensor]:
        """The change of every parameter that counts as a change by one.

        Above 20 the softplus is the identity: there a step of fixed length would leave the hyperparameters of data in
        large units where they are.
        """
        large = [torch.where(p.raw > _IDENTITY, p.raw, 1.0).detach() for p in self.positive]
        return [*large, *(torch.full_like(p, unit) for p, unit in self.free)]

    def position(self) -> Tensor:
        """Where the model stands, float64 on the CPU."""
        parts = [value_of(p).log() for p in self.positive] + [p.detach() / unit for p, unit in self.free]
        return torch.cat([part.flatten().cpu() for part in parts])

    def gradient(self) -> Tensor:
        """The parameters' ``grad`` in these coordinates: d/d log(softplus(u)) = softplus(u) / sigmoid(u) d/du.

        Zero where a bound stops the way down.
        """
        parts = [p.inward(_grad(p.raw)) * value_of(p) / torch.sigmoid(p.raw.detach()) for p in self.positive]
        parts += [_grad(p) * unit for p, unit in self.free]
        return torch.cat([part.flatten().cpu() for part in parts])

    def move(self, position: Tensor) -> None:
        """Put the model there, as far as the bounds and the range of float64 allow."""
        parts = list(position.split([p.numel() for p in self.parameters]))
        for parameter, part in zip(self.positive, parts, strict=False):
            parameter.assign(part.clamp(-_LARGEST_LOG, _LARGEST_LOG).exp().view_as(parameter.raw))
            parameter.project()
        with torch.no_grad():
            for (p, unit), part in zip(self.free, parts[len(self.positive) :], strict=True):
                p.copy_((part * unit).view_as(p))


def _grad(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.detach()


def read_bounds(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    """Check the bounds of a hyperparameter."""
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"bounds of {name} must be two numbers (low, high), got {bounds!r}") from None
    if not 0 <= low < high:
        raise ValueError(f"bounds of {name} must satisfy 0 <= low < high, got {bounds}")
    return low, high


def _shorten(paths: Iterable[str]) -> list[str]:
    """Paths such as kernel.kernels.0._lengthscale as 0.lengthscale; in full where two would be the same."""
    full = [".".join(word.lstrip("_") for word in path.split(".")) for path in paths]
    short = [".".join(word for word in path.split(".") if word not in ("kernel", "kernels")) for path in full]
    return [s if short.count(s) == 1 else f for s, f in zip(short, full, strict=True)]
