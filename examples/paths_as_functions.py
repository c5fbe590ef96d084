"""Posterior paths are functions: maximise 64 of them at once, observe at each maximum, and repeat.

This is Thompson sampling in batches. Every path is one sample of the unknown function, so its maximiser is one sample
of the best input. `update` adds the new observations: it keeps the functions and conditions them on more data.
"""

import torch

import pathgp
from pathgp import kernels

ROUNDS, PATHS, NOISE = 4, 64, 0.1
generator = torch.Generator().manual_seed(1)


def unknown(x: torch.Tensor) -> torch.Tensor:
    """The objective on the unit square: sine waves on a hill."""
    hill = torch.exp(-((x - torch.tensor([0.4, 0.3])) ** 2).sum(-1) / 0.2)
    return hill + 0.4 * torch.sin(11 * x[..., 0]) * torch.cos(9 * x[..., 1])


def observe(x: torch.Tensor) -> torch.Tensor:
    return unknown(x) + NOISE * torch.randn(len(x), generator=generator, dtype=x.dtype)


def uniform(n: int) -> torch.Tensor:
    return torch.rand(n, 2, generator=generator, dtype=torch.float64)


def climb(post: pathgp.Posterior, steps: int = 60) -> torch.Tensor:
    """The maximiser of every path (64, 2): the best of 1,000 random points, then gradient ascent."""
    candidates = uniform(1000)
    with torch.no_grad():
        x = candidates[post.paths(candidates).argmax(1)].clone()
    x.requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        # Path j at its own point only: one backward pass gives the gradients of 64 independent ascents.
        (-post.paths_at(x.unsqueeze(1)).sum()).backward()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0.0, 1.0)
    return x.detach()


fine = torch.cartesian_prod(*[torch.linspace(0, 1, 501, dtype=torch.float64)] * 2)
top = unknown(fine).max()
place = fine[unknown(fine).argmax()]
print(f"the maximum is {top:.3f} at ({place[0]:.3f}, {place[1]:.3f})\n")

gp = pathgp.GP(kernels.Scale(kernels.Matern(nu=2.5, lengthscale=0.25), signal=0.7), noise=NOISE)
X = uniform(40)
post = gp.condition(X, observe(X), samples=PATHS, generator=generator)

print("observations   f where the paths peak: mean, worst   spread of these places   solver epochs")
for _ in range(ROUNDS):
    x = climb(post)
    values, spread = unknown(x), x.std(0).norm()
    print(f"{post.report.rows:12}   {values.mean():27.3f}, {values.min():6.3f}", end="")
    print(f"   {spread:22.3f}   {post.report.solution.epochs:13.1f}")
    post = post.update(x, observe(x), generator=generator)

x = climb(post)
best = x[post.mean(x).argmax()]
print(f"\nbest guess ({best[0]:.3f}, {best[1]:.3f}), where f = {unknown(best):.3f}")
