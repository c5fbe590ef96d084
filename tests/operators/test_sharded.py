"""The work shared out among processes and devices: the same numbers, a part of the work, errors that help."""

from __future__ import annotations

import contextlib
import io
import runpy
import socket
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import pathgp
import rank_worker as worker
from fused_cases import InTurn
from pathgp import kernels, operators
from pathgp.compute import files
from pathgp.operators.sharded import Sharded
from pathgp.operators.streamed import Streamed
from subprocesses import Forks


def _results(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(file, weights_only=False) for file in sorted(folder.glob("[0-9].pt"))]


Run = Callable[[str, int, Path], tuple[list[dict[str, Any]], list[int]]]


PROGRAM = """
import sys
from pathlib import Path
import rank_worker
scenario, rank, size, folder = sys.argv[1:]
rank_worker.child(scenario, int(rank), int(size), Path(folder))
"""
# As torchrun starts it: the environment of a rank.
EXAMPLE = """
import contextlib, os, runpy, sys
rank, size, port, folder, example = sys.argv[1:]
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
os.chdir(folder)
with open(f"printed {rank}", "w") as file, contextlib.redirect_stdout(file):
    runpy.run_path(example, run_name="__main__")
"""


@pytest.fixture
def run(forks: Forks) -> Run:
    """Run a scenario: the results of the ranks that lived, and all exit codes."""

    def request(scenario: str, size: int, folder: Path) -> tuple[list[dict[str, Any]], list[int]]:
        codes = forks.run(PROGRAM, *([scenario, rank, size, folder] for rank in range(size)))
        found = _results(folder)
        assert len(found) == codes.count(0), f"exit codes {codes}; see the errors above"
        return found, codes

    return request


@cache
def _alone() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: the threads divide the budget, and so have smaller tiles
    try:
        return worker.same(None)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [2])
def test_ranks_find_what_one_process_finds_and_share_the_work(size: int, run: Run, tmp_path: Path) -> None:
    (first, *others), codes = run("same", size, tmp_path)
    assert codes == [0] * size
    for what in ("solutions", "prediction", "fit"):
        for name, value in _alone()[what].items():
            message = f"{what}, {name}: {{}}".format
            torch.testing.assert_close(first[what][name], value, rtol=1e-5, atol=1e-5, msg=message)
    for what in ("solutions", "prediction", "fit", "limited"):
        for name, value in first[what].items():
            for other in others:
                # To the last bit.
                assert torch.equal(other[what][name], value) if torch.is_tensor(value) else other[what][name] == value
    for name, entries in _alone()["counts"].items():
        # One process keeps a dense K by evaluating half of it; several evaluate the rows they keep. Each evaluates all
        # four blocks that choose SDD's step.
        whole, everywhere = {"dense": (worker.N**2, 0), "sdd": (entries, 4 * 32**2)}.get(name, (entries, 0))
        assert entries > 0, name
        ranks = (first, *others)
        if name == "fit":
            # The first rank alone checks every step by the exact likelihood: what it evaluates more is that.
            checks = first["counts"]["fit"] - others[0]["counts"]["fit"]
            assert checks % worker.N**2 == 0
            whole, ranks = entries - checks, tuple(others)
        for rank in ranks:
            expected = everywhere + (whole - everywhere) / size
            assert rank["counts"][name] == pytest.approx(expected, rel=1e-3), name
    # Tiles of the symmetric half, with one part in 8 more for their diagonal.
    assert first["counts"]["product"] == first["counts"]["gradient"] == worker.N**2 * 9 // (16 * size)
    assert first["prediction"]["backend"] == f"streamed, shared out among {size}"


def test_ranks_with_different_data_are_refused(run: Run, tmp_path: Path) -> None:
    found, codes = run("refused", 2, tmp_path)
    assert codes == [0, 0]
    for errors in found:
        assert "give every rank the same data" in errors["X"]
        assert "give every rank the same y" in errors["y"]
        assert "kernel, backend or precision differ" in errors["kernel"]
        assert "predict at" in errors["Xs"]
        assert "vectors of the ranks differ" in errors["V"]
        assert "is not a file that pathgp has saved" in errors["checkpoint"]
        assert "kernel, backend or precision differ" in errors["order"]
        assert "the same y, noise, mean" in errors["mean"]
        assert errors["backend"].startswith("backend is 'dense' on rank 0 and 'streamed' on rank 1: give every rank")
        assert errors["memory"].startswith("memory is None on rank 0 and 1000000 on rank 1")
        assert errors["samples"].startswith("samples is 3 on rank 0 and 4 on rank 1")
        assert errors["steps"].startswith("steps is 6 on rank 0 and 7 on rank 1")
        assert errors["file"].startswith("checkpoint is None on rank 0 and 'a file' on rank 1")
        assert "backend or precision differ" in errors["operator"]
        assert errors["budget"].startswith("memory is 300000 on rank 0")


@pytest.mark.parametrize(("victim", "steps", "left"), [(2, 3, 2), (0, worker.STEPS, 1)])
def test_a_lost_rank_ends_the_others_and_the_checkpoint_serves_fewer(
    victim: int, steps: int, left: int, run: Run, tmp_path: Path
) -> None:
    found, codes = run(f"killed {victim} {steps}", 3, tmp_path)
    assert codes == [-9 if rank == victim else 0 for rank in range(3)]
    for result in found:
        assert "checkpoint" in result["error"]
        assert result["seconds"] < worker.SECONDS
    # Written when the rank was lost: the interval of the checkpoint had not passed.
    assert files.read(tmp_path / "fit.pt")["step"] == steps
    assert not list(tmp_path.glob("*.tmp"))
    resumed = worker.resumed(None, tmp_path) if left == 1 else run("resumed", left, tmp_path)[0][0]
    for name, value in _alone()["fit"].items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-5, atol=1e-5)


def test_a_rank_that_hangs_ends_the_others_within_the_time_out(run: Run, tmp_path: Path) -> None:
    found, codes = run("stopped 2 3", 3, tmp_path)
    assert codes == [0, 0, -9]
    for result in found:
        assert "did not make the same call within the time-out" in result["error"]
        # Steps and the pause before the last take a second.
        assert worker.PATIENCE < result["seconds"] < 2 * worker.PATIENCE + 5.0
    assert files.read(tmp_path / "fit.pt")["step"] == 3


def test_the_first_rank_saves_and_one_process_loads(run: Run, tmp_path: Path) -> None:
    found, codes = run("saved", 2, tmp_path)
    assert codes == [0, 0]
    assert [file.name for file in tmp_path.glob("by rank *")] == ["by rank 0"]
    loaded, Xs = pathgp.load(tmp_path / "by rank 0"), worker.data()[0][:9]
    for ask, expected in found[1].items():
        torch.testing.assert_close(getattr(loaded, ask)(Xs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(torch.__version__ < (2, 8), reason="destroy_process_group of Gloo may wait forever")
def test_the_example_on_two_ranks_prints_what_it_prints_alone(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started as torchrun does. On machines with a GPU tests/operators/test_process_groups.py calls torchrun itself."""
    example = Path(__file__).parents[2] / "examples" / "several_processes.py"
    folders = [tmp_path / name for name in ("alone", "two")]
    for folder in folders:
        folder.mkdir()
    monkeypatch.chdir(folders[0])
    with contextlib.redirect_stdout(io.StringIO()) as alone:
        runpy.run_path(str(example), run_name="__main__")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    assert forks.run(EXAMPLE, *([rank, 2, port, folders[1], example] for rank in range(2))) == [0, 0]
    shared, silent = ((folders[1] / f"printed {rank}").read_text() for rank in range(2))
    assert not silent
    printed = [text.splitlines() for text in (alone.getvalue(), shared)]
    assert printed[1][0] == f"{printed[0][0]}, shared out among 2"
    assert printed[1][1:] == printed[0][1:]


def test_four_ranks_solve_what_one_process_solves(run: Run, tmp_path: Path) -> None:
    found, codes = run("solved", 4, tmp_path)
    assert codes == [0] * 4
    for solved in found:
        for name, value in solved.items():
            torch.testing.assert_close(value, _alone()["solutions"][name], rtol=1e-5, atol=1e-5)


def test_without_a_process_group_the_way_is_told() -> None:
    with pytest.raises(ValueError, match="torchrun"):
        operators.Ranks()


def test_several_devices_find_what_one_finds() -> None:
    group, alone = pathgp.Devices(["cpu"] * 3), _alone()
    for what, found in (("solutions", worker.solutions(group)), ("prediction", worker.prediction(group))):
        for name, value in alone[what].items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)
    for name, value in worker.fit(group).items():
        torch.testing.assert_close(value, alone["fit"][name], rtol=1e-5, atol=1e-5)


def test_members_that_take_smaller_tiles_still_cover_everything() -> None:
    """One member ran out of memory and halved its tiles; the others did not."""
    X, V = worker.data()[0], torch.ones(worker.N, 2, dtype=torch.float64)
    group = InTurn(["cpu"] * 3)
    H = operators.KernelOperator(
        worker.kernel(), X, compute=pathgp.Compute(backend="streamed", memory=worker.MEMORY, group=group)
    )
    before = H @ V, H.bilinear(V, V)
    assert isinstance(H._tiles, Sharded)
    part = H._tiles.parts[1]
    assert isinstance(part, Streamed)
    part.edge //= 3
    torch.testing.assert_close((H @ V, H.bilinear(V, V)), before)


def test_a_dense_matrix_may_exceed_one_member() -> None:
    X, memory = worker.data()[0], 8 * worker.N * -(-worker.N // 3)
    with pytest.raises(ValueError, match="dense"):
        operators.KernelOperator(worker.kernel(), X, compute=pathgp.Compute(backend="dense", memory=memory))
    backends = [
        operators.KernelOperator(
            worker.kernel(), X, compute=pathgp.Compute(memory=memory, group=pathgp.Devices(["cpu"] * size))
        ).backend
        for size in (2, 3)
    ]
    assert backends == ["streamed", "dense"]
    with pytest.raises(ValueError, match="more members"):
        operators.KernelOperator(
            worker.kernel(),
            X,
            compute=pathgp.Compute(backend="dense", memory=memory, group=pathgp.Devices(["cpu"] * 2)),
        )


@pytest.mark.parametrize("backend", ["fused", "dense"])
def test_precision_is_a_matter_of_all_members(backend: str) -> None:
    """Rough products between the checks, the same solution, and the report tells; a dense K knows no other."""
    pytest.importorskip("triton", minversion="3.6")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X = torch.randn(40, 9, generator=torch.Generator().manual_seed(0)).to(device)
    gp = pathgp.GP(kernels.Matern(1.5, 3.0), noise=1.0)
    options: dict[str, Any] = {"samples": 2, "features": 16, "solver": "cg", "tol": 1e-5}

    def condition(group: pathgp.Devices | None, precision: str) -> pathgp.Posterior:
        generator = torch.Generator().manual_seed(1)
        compute = pathgp.Compute(backend, group=group, precision=precision)
        return gp.condition(X, X[:, 0].sin(), generator=generator, compute=compute, **options)

    group = InTurn([device] * 3)
    shared, alone = condition(group, "low"), condition(None, "high")
    torch.testing.assert_close(shared.mean(X), alone.mean(X), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared.paths(X), alone.paths(X), rtol=1e-3, atol=1e-3)
    fused = "low precision, off by "
    assert shared.report.products.startswith(fused if backend == "fused" else "high precision: low was asked for")
    assert shared.report.solution.converged
    assert condition(group, "high").report.products == "high precision"
    H = operators.KernelOperator(gp.kernel, X, compute=pathgp.Compute(backend=backend, group=group, precision="low"))
    off = (H.low_precision @ X - H @ X).norm() / (H @ X).norm()
    assert 1e-5 < off < 4e-3 if backend == "fused" else off == 0


def test_rough_products_are_those_of_the_same_kernel() -> None:
    """Whatever becomes of its parameters before they are asked for."""
    pytest.importorskip("triton", minversion="3.6")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X = torch.randn(40, 9, generator=torch.Generator().manual_seed(0)).to(device)
    kernel = kernels.Matern(1.5, 3.0)
    H = operators.KernelOperator(
        kernel, X, compute=pathgp.Compute(backend="fused", group=InTurn([device] * 2), precision="low")
    )
    with torch.no_grad():
        next(kernel.parameters()).mul_(2.0)
    assert (H.low_precision @ X - H @ X).norm() < 4e-3 * (H @ X).norm()


def test_bad_groups_are_refused() -> None:
    X, y = worker.data()
    with pytest.raises(ValueError, match="at least one"):
        pathgp.Devices([])
    with pytest.raises(TypeError, match=r"Devices takes a list of devices: Devices\(\['cpu'\]\)"):
        pathgp.Devices("cpu")
    with pytest.raises(TypeError, match="Ranks"):
        pathgp.Compute(group="ranks")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"compute must be a pathgp.Compute\(...\) or None, got str"):
        pathgp.GP(worker.kernel()).condition(X, y, compute="dense")  # type: ignore[arg-type]
