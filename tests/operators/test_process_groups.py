"""Process groups of every kind serve, on GPUs as well, or say what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pathgp import operators
from subprocesses import python, torchrun

EXAMPLE = Path(__file__).parents[2] / "examples" / "several_processes.py"
PROGRAM = """
import torch
import torch.distributed as dist
import pathgp

dist.init_process_group({backend})
group = pathgp.Ranks()
X = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).to({device!r})
way = "fused" if X.is_cuda else "dense"
compute = pathgp.Compute(way, group=group)
post = pathgp.GP(pathgp.kernels.Matern(1.5), 0.1).condition(X, X.sum(1), samples=2, compute=compute)
assert post.report.backend == (f"{{way}}, shared out among {{group.size}}" if group.size > 1 else way)
print(bool((post.mean(X) - X.sum(1)).abs().max() < 0.1))
dist.destroy_process_group()
"""

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _printed(folder: Path, ranks: int, backend: str, device: str) -> list[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(backend=repr(backend) if backend else "", device=device))
    return python(*torchrun(ranks), program).stdout.split()


def test_data_where_the_process_group_does_not_reach(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        group = operators.Ranks()
        assert group.members(torch.device("cpu")) == {0: torch.device("cpu")}
        with pytest.raises(ValueError, match=r"the data are on meta, but .* on cpu.* alone"):
            group.members(torch.device("meta"))
    finally:
        dist.destroy_process_group()


@on_gpu
@pytest.mark.parametrize("backend", ["", "nccl", "gloo", "cpu:gloo,cuda:nccl"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_kind(backend: str, device: str, tmp_path: Path) -> None:
    """Of one rank: NCCL takes one per GPU. Where none is named torch takes NCCL."""
    if device == "cpu" and backend in ("", "nccl"):
        with pytest.raises(AssertionError, match="the data are on cpu, but this process group adds up numbers on cuda"):
            _printed(tmp_path, 1, backend, device)
    else:
        assert _printed(tmp_path, 1, backend, device) == ["True"]


@on_gpu
def test_ranks_of_gloo_may_share_a_gpu(tmp_path: Path) -> None:
    assert _printed(tmp_path, 2, "gloo", "cuda") == ["True", "True"]


@on_gpu
def test_ranks_of_nccl_may_not(tmp_path: Path) -> None:
    """Nobody has told them to take different ones."""
    with pytest.raises(AssertionError, match=r"several ranks use the same GPU: call torch\.cuda\.set_device"):
        _printed(tmp_path, 2, "nccl", "cuda")


@on_gpu
def test_the_example_with_a_gpu_for_its_process(tmp_path: Path) -> None:
    found = []
    for name, start in (("alone", []), ("one", torchrun(1))):
        (tmp_path / name).mkdir()
        words = python(*start, EXAMPLE, cwd=tmp_path / name).stdout.replace(",", " ").split()
        found.append([float(word) for word in words if "." in word])
    assert len(found[0]) == 6
    assert found[1] == pytest.approx(found[0], rel=1e-3)
