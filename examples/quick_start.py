"""Mean, uncertainty and posterior functions from 3,000 noisy observations."""

import numpy as np

import pathgp
from pathgp import kernels, metrics

rng = np.random.default_rng(0)
X = rng.uniform(size=(3000, 2))
f = np.sin(6 * X[:, 0]) + X[:, 1] ** 2
y = f + 0.1 * rng.normal(size=3000)
train, test = slice(0, 2500), slice(2500, None)

kernel = kernels.Scale(kernels.Matern(nu=2.5, lengthscale=[0.5, 1.0]), signal=1.0)
gp = pathgp.GP(kernel, noise=0.1)
post = gp.condition(X[train], y[train])  # NumPy in, NumPy out; tensors in, tensors out

mean = post.mean(X[test])  # (500,)
std = post.variance(X[test]) ** 0.5  # (500,), of f; variance(..., noise=True) is that of an observation
paths = post.paths(X[test])  # (64, 500): 64 functions from the posterior, evaluated at the test inputs

print(post.report)
print()
print("  f(x)    mean     std   three of the 64 paths")
for i in range(5):
    print(f"{f[test][i]:6.3f}  {mean[i]:6.3f}  {std[i]:6.3f}  ", *(f"{path[i]:7.3f}" for path in paths[:3]))

noisy = post.variance(X[test], noise=True)
print()
print(f"held out: RMSE {metrics.rmse(y[test], mean):.3f} (noise 0.1), ", end="")
print(f"{100 * metrics.coverage(y[test], mean, noisy):.1f} % of the observations inside their 95 % intervals")
