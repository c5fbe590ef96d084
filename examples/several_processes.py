"""Distribute one fit over several processes.

    torchrun --nproc_per_node=4 several_processes.py

Every process runs this program. The products with the kernel matrix, the gradient and the predictions are distributed
over the processes. Without torchrun, one process computes the same results.
"""

import os

import torch
import torch.distributed as dist

import pathgp
from pathgp import kernels, metrics

group, device, first = None, "cpu", True
if "RANK" in os.environ:  # set by torchrun
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # use GPUs only if every process has one
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    group = pathgp.Ranks()
    first = group.is_main_process

# All processes need the same data: use the same seed or read the same file.
source = torch.Generator().manual_seed(0)
X = torch.rand(1500, 2, generator=source, dtype=torch.float64)
y = torch.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * torch.randn(1500, generator=source, dtype=torch.float64)
X, y = X.to(device), y.to(device)
train, test = slice(0, 1200), slice(1200, None)

gp = pathgp.GP(kernels.Scale(kernels.Matern(nu=1.5, lengthscale=torch.ones(2))), noise=0.3)
report = gp.fit(
    X[train],
    y[train],
    steps=6,
    samples=16,
    learning_rate=0.2,
    solver="ap",
    min_gain=0.0,
    checkpoint="several_processes.pt",
    generator=torch.Generator().manual_seed(1),
    compute=pathgp.Compute(group=group),
)

# Prediction is distributed as well, so every process must call it; only the main process prints.
mean, variance = gp.posterior.mean(X[test]), gp.posterior.variance(X[test], noise=True)
if first:
    print("kernel matrix:", report.condition.backend)
    for name, value in gp.hyperparameters().items():
        print(f"{name:<12}", *(f"{number:.6f}" for number in value.flatten().tolist()))
    print(f"held out: RMSE {metrics.rmse(y[test], mean):.6f}, NLL {metrics.nll(y[test], mean, variance):.6f}")

if group is not None:
    dist.destroy_process_group()
