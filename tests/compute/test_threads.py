"""Tasks on several threads: order, modes, errors, and the number of threads of torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from pathgp import Compute, kernels
from pathgp.compute.threads import run_in_order
from pathgp.operators import KernelOperator, cross_product

CPU = torch.device("cpu")


@pytest.fixture
def three_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("three_threads")
def test_results_are_added_in_order_however_long_tasks_take() -> None:
    added, begun, running = [], [], []

    def compute(task: int) -> int:
        begun.append(task)
        # Task 0 ends after all that may overtake it have begun.
        deadline = time.monotonic() + 10.0
        while task == 0 and len(begun) < 12 and time.monotonic() < deadline:
            time.sleep(0.001)
        running.append((threading.get_ident(), torch.get_num_threads()))
        return 2 * task

    run_in_order(range(40), compute, lambda task, result: added.append((task, result)), CPU)
    assert added == [(task, 2 * task) for task in range(40)]
    assert begun[:12] == sorted(begun[:12])
    assert len({thread for thread, _ in running}) > 1
    assert {threads for _, threads in running} == {1}


@pytest.mark.usefixtures("three_threads")
def test_results_that_wait_are_few() -> None:
    release, begun = threading.Event(), []

    def compute(task: int) -> None:
        begun.append(task)
        if task == 0:
            release.wait(10.0)

    def watch() -> None:
        time.sleep(0.1)
        begun.append(-1)
        release.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    run_in_order(range(100), compute, lambda task, result: None, CPU)
    watcher.join()
    # Four for each of three threads, the first included.
    assert begun.index(-1) == 12


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.usefixtures("three_threads")
def test_an_error_ends_the_work(error: type[BaseException]) -> None:
    begun = []

    def compute(task: int) -> None:
        begun.append(task)
        if task == 5:
            raise error("of task 5")

    with pytest.raises(error, match="of task 5"):
        run_in_order(range(1000), compute, lambda task, result: None, CPU)
    assert len(begun) < 30
    # The threads are ready for the next tasks.
    results: list[int] = []
    run_in_order(range(9), lambda task: task, lambda task, result: results.append(result), CPU)
    assert results == list(range(9))


@pytest.mark.usefixtures("three_threads")
def test_a_thread_has_the_modes_of_its_caller() -> None:
    modes = []

    def note(task: int) -> None:
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    for mode, expected in ((torch.enable_grad, (True, False)), (torch.no_grad, (False, False))):
        with mode():
            run_in_order(range(6), note, lambda task, result: None, CPU)
        assert modes == [expected] * 6
        modes.clear()
    with torch.inference_mode():
        run_in_order(range(6), note, lambda task, result: None, CPU)
    assert modes == [(False, True)] * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_equal_to_the_last_bit_for_every_number_of_threads(dtype: torch.dtype) -> None:
    """Also next to other threads that compute products, and in inference mode."""
    generator = torch.Generator().manual_seed(0)
    X, V = (torch.randn(1700, columns, generator=generator, dtype=dtype) for columns in (3, 4))
    index = torch.randperm(1700, generator=generator)[:600]
    kernel = kernels.Scale(kernels.Matern(1.5, torch.tensor([0.8, 1.0, 1.3])), 1.2)

    def results() -> list[torch.Tensor]:
        H = KernelOperator(kernel, X, 0.1, Compute("streamed", memory=1e9))
        value = H.bilinear(V, V.flip(0))
        points = X[:900].clone().requires_grad_()
        cross = cross_product(kernel, points, X, V, memory=1e9)
        gradients = torch.autograd.grad(value, list(kernel.parameters())), torch.autograd.grad(cross.sum(), points)
        return [H @ V, H.rows(index, V), H.columns(index, V[:600]), value, cross, *gradients[0], *gradients[1]]

    threads, found = torch.get_num_threads(), []
    for number in (1, 2, 3, 3):
        torch.set_num_threads(number)
        found.append(results())
    with torch.inference_mode():
        inferred = KernelOperator(kernel, X, 0.1, Compute("streamed", memory=1e9)) @ V
    torch.set_num_threads(threads)
    K = kernel(X.double()).detach()
    expected = K @ V.double() + 0.01 * V
    assert float((found[0][0] - expected).norm() / expected.norm()) < 100 * torch.finfo(dtype).eps
    for other in (*found[1:], [inferred]):
        for a, b in zip(found[0], other, strict=False):
            assert torch.equal(a, b)


def test_a_forked_process_has_its_own_threads(three_threads: None) -> None:
    run_in_order(range(6), lambda task: task, lambda task, result: None, CPU)
    context = torch.multiprocessing.get_context("fork")
    queue = context.Queue()

    def child() -> None:
        total = []
        run_in_order(range(6), lambda task: task, lambda task, result: total.append(result), CPU)
        queue.put(total)

    process = context.Process(target=child)
    process.start()
    assert queue.get(timeout=60) == list(range(6))
    process.join()
