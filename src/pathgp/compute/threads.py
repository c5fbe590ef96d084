"""Tasks on several threads of a CPU, each of which computes without the others.

With several threads torch divides every elementwise operation among them and waits for all: thousands of short waits in
one product. If another process uses one of the cores, each wait becomes as long as that process computes. Here each
thread computes whole tasks, for example tiles of a matrix, and waits for no other.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

# Results per thread that may wait for the result of an earlier task: more than a thread finishes while the operating
# system gives the core of another thread to a different process.
_AHEAD = 4


def count_threads(device: torch.device) -> int:
    """The number of tasks that `run_in_order` computes at the same time: one on a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def run_in_order(
    tasks: Sequence[T], compute: Callable[[T], R], add: Callable[[T, R], object], device: torch.device
) -> None:
    """add(task, compute(task)) for all tasks, in their order, with several calls of ``compute`` at the same time.

    The results are added in the order of the tasks, one after the other: they are equal to the last bit in every run
    and, from two tasks on, for every number of threads. At most four results per thread wait for an earlier one. The
    first exception ends the work after the tasks in progress.
    """
    threads = min(count_threads(device), len(tasks))
    if threads < 2:
        for task in tasks:
            add(task, compute(task))
        return
    run = _Run(tasks, compute, add, _AHEAD * threads)
    pool = _pool(os.getpid(), torch.get_num_threads())
    workers = [pool.submit(run.work) for _ in range(threads)]
    try:
        for worker in workers:
            worker.result()
    finally:
        run.stop()
        wait(workers)


def run_separately(tasks: Sequence[T], compute: Callable[[T], object], device: torch.device) -> None:
    """compute(task) for all tasks, several at the same time, for tasks that write to separate places."""
    run_in_order(tasks, compute, lambda task, result: None, device)


def list_in_order(tasks: Sequence[T], compute: Callable[[T], R], device: torch.device) -> list[R]:
    """[compute(task) for task in tasks], several at the same time."""
    results: list[R] = []
    run_in_order(tasks, compute, lambda task, result: results.append(result), device)
    return results


class _Run(Generic[T, R]):
    """The state that the threads of one call share."""

    def __init__(
        self, tasks: Sequence[T], compute: Callable[[T], R], add: Callable[[T, R], object], ahead: int
    ) -> None:
        self.tasks, self.compute, self.add, self.ahead = tasks, compute, add, ahead
        self.changed = threading.Condition()
        self.taken = self.added = 0
        self.results: dict[int, R] = {}
        self.is_stopped = False
        # These modes belong to a thread.
        self.inference, self.grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def work(self) -> None:
        """Compute tasks until none is left."""
        try:
            with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad):
                while (number := self._take()) is not None:
                    self._finish(number, self.compute(self.tasks[number]))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        with self.changed:
            self.is_stopped = True
            self.changed.notify_all()

    def _take(self) -> int | None:
        with self.changed:
            self.changed.wait_for(lambda: self.is_stopped or self.taken - self.added < self.ahead)
            if self.is_stopped or self.taken == len(self.tasks):
                return None
            self.taken += 1
            return self.taken - 1

    def _finish(self, number: int, result: R) -> None:
        with self.changed:
            self.results[number] = result
            while self.added in self.results:
                self.add(self.tasks[self.added], self.results.pop(self.added))
                self.added += 1
            self.changed.notify_all()


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads in which the operations of torch use one core; a fork of the process gets its own."""
    started = threading.Barrier(threads + 1)

    def initialise() -> None:
        # A thread starts with a number that is common to the process, when it first asks for it: ask, then set. The
        # call sets both the number of this thread and the common one, which the caller restores below.
        torch.get_num_threads()
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "pathgp", initialise)
    try:
        for _ in range(threads):
            pool.submit(int)
        started.wait()
    except BaseException:
        started.abort()
        raise
    finally:
        torch.set_num_threads(threads)
    return pool
