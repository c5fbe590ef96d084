"""Saved posteriors: the same answers after loading, to the last bit, and an error for every other file."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pathgp
from grid_cases import Grid
from pathgp import GP, LatentKroneckerGP, files, means, saving, solvers
from pathgp import kernels as K
from pathgp.kernels.parameters import Positive
from pathgp.solvers.base import Run, Solution
from posterior_cases import CASES, Case

BUDGET: dict[str, Any] = {"samples": 6, "features": 128, "tol": 1e-6}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=seeded(seed), dtype=torch.float64)


def small(**options: Any) -> pathgp.Posterior:
    X = uniform(20)
    options = {**BUDGET, "samples": 2, "features": 8, "generator": seeded(), **options}
    return GP(K.Scale(K.Matern(1.5, 0.4), 1.3), noise=0.2).condition(X, X.sum(1).sin(), **options)


def again(posterior: Any, path: Path, **options: Any) -> Any:
    posterior.save(path, **options)
    return pathgp.load(path)


def assert_same(found: Any, expected: Any) -> None:
    """The same kind, dtype, device and bits."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert found.device == expected.device
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def assert_same_posterior(found: Any, expected: Any, X: Any, y: Any) -> None:
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    assert repr(found.model) == repr(expected.model)
    for post in (found, expected):
        assert not any(p.requires_grad for p in post.model.parameters())
    assert_same(found.mean(X), expected.mean(X))
    assert_same(found.covariance(X), expected.covariance(X))
    assert_same(found.sample(X, 3, seeded()), expected.sample(X, 3, seeded()))
    for method in (None, "neighbours", "samples", "solve") if expected.num_samples else (None, "solve"):
        assert_same(found.variance(X, method=method), expected.variance(X, method=method))
    if expected.num_samples:
        assert_same(found.paths(X), expected.paths(X))
    assert found.log_marginal_likelihood(generator=seeded()) == expected.log_marginal_likelihood(generator=seeded())
    assert_same(found.leave_one_out().means, expected.leave_one_out().means)
    updated, longer = (post.update(X, y, generator=seeded(3)) for post in (found, expected))
    assert_same(updated.mean(X), longer.mean(X))
    assert_same(updated.variance(X), longer.variance(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kernel(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    X, y, Xs = (part.to(dtype) for part in case.data(40, 12))
    posterior = GP(case.kernel, noise=0.3).condition(X, y, samples=6, tol=1e-3, generator=seeded())
    assert_same_posterior(again(posterior, tmp_path / "post"), posterior, Xs, Xs[:, 0])


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "standardise": ({"standardise": True}, {}),
    "a mean": ({"mean": 0.7, "standardise": True}, {}),
    "a learned mean": ({"mean": means.Constant(0.3), "standardise": True}, {}),
    "noise per row": ({}, {"noise": np.linspace(0.1, 0.4, 40)}),
    "no samples": ({}, {"samples": 0}),
    "a used generator": ({}, {"generator": seeded(), "samples": 3}),
    "a solver": ({}, {"solver": solvers.CG(solvers.PivotedCholesky(7)), "max_epochs": 50.0}),
    "a solver with a numpy number": ({}, {"solver": solvers.AP(block_size=np.int64(11))}),
    "streamed": ({}, {"backend": "streamed", "memory": 10_000_000}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name: str, tmp_path: Path) -> None:
    of_model, of_condition = OPTIONS[name]
    X = 3.0 * uniform(40).numpy() - 1.0
    posterior = GP(K.Scale(K.Matern(2.5, 0.6), 1.4) + K.Linear(0.5, 0.3), noise=0.2, **of_model).condition(
        X, 5.0 + X.sum(1), **{**BUDGET, "generator": seeded(), **of_condition}
    )
    found = again(posterior, tmp_path / "post")
    assert_same_posterior(found, posterior, X[:7] + 0.1, X[:7, 0])
    assert isinstance(found.mean(X), np.ndarray)
    assert found._settings == posterior._settings


def test_an_updated_posterior_and_one_of_a_fit(tmp_path: Path) -> None:
    X = uniform(30)
    gp = GP(K.Scale(K.Periodic(0.9, 1.1, active_dims=[0]) * K.SquaredExponential(0.5)), noise=0.2)
    gp.constrain("period", fixed=True).constrain("signal", bounds=(0.1, 5.0))
    gp.constrain("1.lengthscale", prior=pathgp.LogNormal(0.5, 2.0))
    gp.fit(X, X.sum(1).cos(), steps=4, samples=4, features=128, generator=seeded())
    found = again(gp.posterior, tmp_path / "post")
    assert_same_posterior(found, gp.posterior, uniform(8, seed=2), uniform(8)[:, 1])
    for (name, a), b in zip(found.model.named_modules(), gp.posterior.model.modules(), strict=True):
        if isinstance(a, Positive):
            assert isinstance(b, Positive), name
            assert (a.bounds, a.prior) == (b.bounds, b.prior)
            assert torch.equal(a.raw, b.raw)
    longer = gp.posterior.update(uniform(9, seed=4), uniform(9)[:, 0], generator=seeded())
    assert_same_posterior(again(longer, tmp_path / "post"), longer, uniform(8, seed=2), uniform(8)[:, 1])


def test_what_may_be_learned_is_kept(tmp_path: Path) -> None:
    posterior = small()
    posterior.model.constrain("signal", fixed=False)
    found = again(posterior, tmp_path / "post").model
    assert [name for name, p in found.named_parameters() if p.requires_grad] == ["kernel._signal.raw"]


def test_a_kernel_that_occurs_twice_stays_one(tmp_path: Path) -> None:
    k, X = K.Matern(1.5, 0.4), uniform(20)
    posterior = GP(k + k * K.Linear(0.7)).condition(X, X[:, 0], **BUDGET)
    found = again(posterior, tmp_path / "post").model
    assert list(found.hyperparameters()) == list(posterior.model.hyperparameters())
    assert found.kernel.parts[0] is found.kernel.parts[1].parts[0]


def test_what_is_said_about_it(tmp_path: Path) -> None:
    about = {"target": "°C", "columns": ["a", "b"], "$tensor": 0, "nested": {"$class": "GP", "n": [1, 2.5, None, True]}}
    posterior = small()
    assert posterior.about is None
    assert again(posterior, tmp_path / "post").about is None
    found = again(posterior, tmp_path / "post", about=about)
    assert found.about == about
    # Saving it once more does not lose it.
    assert again(found, tmp_path / "post", data=False).about == about
    grid = grid_posterior(2)
    assert again(grid, tmp_path / "post", about={"rows": "stations"}).about == {"rows": "stations"}


@pytest.mark.parametrize(
    ("about", "error", "told"),
    [
        (["a"], TypeError, "about must be a dict"),
        ({1: "a"}, TypeError, "about has the key 1"),
        ({"a": {"b": [0, np.float64(1.0)]}}, TypeError, re.escape("about['a']['b'][1] is of float64")),
        ({"a": (1, 2)}, TypeError, re.escape("about['a'] is of tuple")),
        ({"a": float("nan")}, ValueError, re.escape("about['a'] is nan")),
    ],
)
def test_only_plain_things_are_said_about_it(about: Any, error: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=told):
        small().save(tmp_path / "post", about=about)
    assert not (tmp_path / "post").exists()


def test_components_and_gradients(tmp_path: Path) -> None:
    X = uniform(25)
    posterior = GP(K.Matern(1.5, 0.4) + K.Linear(0.7)).condition(X, X[:, 0], **BUDGET)
    found = again(posterior, tmp_path / "post")
    for name, component in posterior.components().items():
        assert_same(found.components()[name].paths(X), component.paths(X))
    gradients = []
    for post in (found, posterior):
        Xs = uniform(5, seed=3).requires_grad_()
        gradients.append(torch.autograd.grad(post.paths(Xs).sum(), Xs)[0])
    assert_same(*gradients)


def grid_posterior(k: int = 2, **options: Any) -> Any:
    grid = Grid(k, 0.3)
    of_condition = {name: options.pop(name) for name in ("noise",) if name in options}
    model = LatentKroneckerGP(grid.model.sides, 0.2, **options)
    return model.condition(grid.factors, grid.Y, **BUDGET, **of_condition, generator=seeded())


GRID_OPTIONS: list[dict[str, Any]] = [
    {},
    {"standardise": True, "mean": means.Constant(0.1)},
    {"mean": 0.5, "noise": torch.tensor([0.2])},
]


@pytest.mark.parametrize("options", GRID_OPTIONS)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_grids(k: int, options: dict[str, Any], tmp_path: Path) -> None:
    grid, posterior = Grid(k, 0.3), grid_posterior(k, **options)
    found = again(posterior, tmp_path / "post")
    assert repr(found) == repr(posterior)
    assert repr(found.model) == repr(posterior.model)
    for inputs in ([None] * k, grid.mixed):
        for ask in ("mean", "variance", "covariance", "paths"):
            assert_same(getattr(found, ask)(*inputs), getattr(posterior, ask)(*inputs))
        assert_same(found.sample(*inputs, generator=seeded()), posterior.sample(*inputs, generator=seeded()))
    assert found.log_marginal_likelihood() == posterior.log_marginal_likelihood()
    full = grid.Y.nan_to_num(0.3)
    noise = torch.tensor([0.2]) if "noise" in options else None
    updated, longer = (post.update(full, noise, generator=seeded(2)) for post in (found, posterior))
    assert_same(updated.variance(), longer.variance())


def test_a_fitted_grid_in_numpy_and_float32(tmp_path: Path) -> None:
    Y = uniform(8, 5).numpy().astype(np.float32)
    Y[2, 3] = Y[7, 0] = np.nan
    gp = LatentKroneckerGP([K.Scale(K.Matern(1.5, 3.0)), K.Task(5)], standardise=True)
    gp.fit([None, None], Y, steps=3, samples=4, features=64, generator=seeded())
    found = again(gp.posterior, tmp_path / "post")
    assert found.mean().dtype == np.float32
    assert_same(found.mean(), gp.posterior.mean())
    assert_same(found.variance(np.arange(9.5), None), gp.posterior.variance(np.arange(9.5), None))


def test_without_data(tmp_path: Path) -> None:
    X, Xs = uniform(200), uniform(7, seed=5)
    posterior = GP(K.Matern(1.5, 0.4)).condition(X, X[:, 0], samples=64, features=16, generator=seeded())
    posterior.save(tmp_path / "with")
    found = again(posterior, tmp_path / "without", data=False)
    assert (tmp_path / "without").stat().st_size < 0.6 * (tmp_path / "with").stat().st_size
    for ask in ("mean", "paths", "covariance"):
        assert_same(getattr(found, ask)(Xs), getattr(posterior, ask)(Xs))
    assert_same(found.variance(Xs), posterior.variance(Xs, method="samples"))
    assert_same(found.variance(Xs, method="solve"), posterior.variance(Xs, method="solve"))
    lost: list[Callable[[], Any]] = [
        lambda: found.update(Xs, Xs[:, 0]),
        found.leave_one_out,
        found.log_marginal_likelihood,
        lambda: found.variance(Xs, method="neighbours"),
    ]
    for ask_for in lost:
        with pytest.raises(ValueError, match=r"save\(data=True\)"):
            ask_for()
    assert_same(again(found, tmp_path / "once more").mean(Xs), posterior.mean(Xs))


def test_a_grid_without_data(tmp_path: Path) -> None:
    posterior = grid_posterior()
    found = again(posterior, tmp_path / "post", data=False)
    assert_same(found.mean(), posterior.mean())
    for ask in ("variance", "covariance"):
        assert_same(getattr(found, ask)(*Grid(2).new), getattr(posterior, ask)(*Grid(2).new))
    assert bool(found._data.y.isnan().all())
    for ask_for in (found.paths, found.log_marginal_likelihood, lambda: found.update(Grid(2).Y)):
        with pytest.raises(ValueError, match=r"save\(data=True\)"):
            ask_for()


PROGRAM = """
import sys, numpy as np, torch, pathgp
table, grid, inputs, out = sys.argv[1:]
X = np.load(inputs)
post = pathgp.load(table)
longer = post.update(X, X[:, 0], generator=torch.Generator().manual_seed(4))
lk = pathgp.load(grid)
np.savez(out, post.mean(X), post.variance(X), post.paths(X), post.covariance(X), longer.paths(X), lk.mean(), lk.paths())
"""


def test_a_fresh_process(tmp_path: Path) -> None:
    X = uniform(300).numpy().astype(np.float32)
    gp = GP(K.Scale(K.Matern(1.5, 0.4), 1.3) + K.RationalQuadratic(0.8, 0.5), noise=0.2, standardise=True)
    posterior, lk = gp.condition(X, X.sum(1), samples=16, solver="ap"), grid_posterior()
    X = X[:40] + np.float32(0.01)
    names = [str(tmp_path / name) for name in ("table", "grid", "inputs.npy", "out.npz")]
    posterior.save(names[0])
    lk.save(names[1])
    np.save(names[2], X)
    subprocess.run([sys.executable, "-c", PROGRAM, *names], check=True)
    longer = posterior.update(X, X[:, 0], generator=seeded(4))
    asked = [posterior.mean(X), posterior.variance(X), posterior.paths(X), posterior.covariance(X), longer.paths(X)]
    with np.load(names[3]) as found:
        for result, expected in zip(found.values(), [*asked, lk.mean().numpy(), lk.paths().numpy()], strict=True):
            assert_same(result, expected)


SCALES = st.floats(1e-3, 1e3)
DIMS = st.sampled_from([None, [0], [1], [1, 0]])
PER_COLUMN = st.one_of(SCALES, st.lists(SCALES, min_size=1, max_size=1).map(torch.tensor))


def _one_column(kernel: Callable[..., K.Kernel], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[K.Kernel]:
    return st.builds(kernel, *arguments, active_dims=st.sampled_from([[0], [1]]))


LEAVES = st.one_of(
    _one_column(K.SquaredExponential, PER_COLUMN),
    _one_column(K.Matern, st.floats(0.1, 10.0), PER_COLUMN),
    _one_column(K.RationalQuadratic, SCALES, PER_COLUMN),
    _one_column(K.Periodic, PER_COLUMN, PER_COLUMN),
    _one_column(K.Linear, PER_COLUMN, st.one_of(st.none(), SCALES)),
    _one_column(K.Task, st.integers(1, 5), st.integers(1, 3)),
    st.builds(K.Tanimoto, active_dims=DIMS),
    st.builds(K.Matern, st.sampled_from([0.5, 1.5, 2.5]), SCALES, active_dims=DIMS),
)


def _combined(inner: st.SearchStrategy[K.Kernel]) -> st.SearchStrategy[K.Kernel]:
    both = st.lists(inner, min_size=1, max_size=3)
    whole = st.sampled_from([None, [0, 1], [1, 0]])
    return st.one_of(
        st.builds(K.Scale, inner, SCALES, active_dims=whole),
        st.builds(lambda parts, dims: K.Sum(*parts, active_dims=dims), both, whole),
        st.builds(lambda parts, dims: K.Product(*parts, active_dims=dims), both, whole),
    )


@given(kernel=st.recursive(LEAVES, _combined, max_leaves=6), noise=SCALES)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_kernel_expression(kernel: K.Kernel, noise: float, tmp_path: Path) -> None:
    model = GP(kernel, noise)
    files.write(tmp_path / "file", {"model": saving.described(model), "state": dict(model.state_dict())})
    content = files.read(tmp_path / "file")
    found = saving.built(content["model"], torch.device("cpu"))
    assert repr(found) == repr(model)
    found.load_state_dict(content["state"])
    state = model.state_dict()
    assert list(found.state_dict()) == list(state)
    assert all(torch.equal(value, state[name]) for name, value in found.state_dict().items())


@pytest.mark.parametrize(
    "solver", [getattr(solvers, name)() for name in ("AP", "Auto", "CG", "Cholesky", "SDD", "SGD")]
)
def test_every_solver(solver: solvers.Solver) -> None:
    assert saving.built(saving.described(solver), torch.device("cpu")) == solver


@pytest.mark.parametrize("name", ["GridBlocks", "GridInverse", "PivotedCholesky", "RandomlyPivotedCholesky"])
def test_every_preconditioner(name: str) -> None:
    solver = solvers.CG(getattr(solvers, name)())
    assert saving.built(saving.described(solver), torch.device("cpu")) == solver


# Files that are not ours, not whole or not what they were.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "post"
    small().save(path)
    return path.read_bytes()


def refused(path: Path, content: bytes, match: str = "pathgp|damaged") -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match):
        pathgp.load(path)


def test_every_flipped_bit_is_noticed(saved: bytes, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    places = [*range(8 * 64), *generator.choice(8 * len(saved), 1000, replace=False)]
    for place in map(int, places):
        content = bytearray(saved)
        content[place // 8] ^= 1 << place % 8
        refused(tmp_path / "post", bytes(content))


def test_every_part_is_refused(saved: bytes, tmp_path: Path) -> None:
    lengths = [*range(64), *np.linspace(64, len(saved) - 1, 200, dtype=int)]
    for length in lengths:
        refused(tmp_path / "post", saved[:length])
    refused(tmp_path / "post", saved + b"\x00", "damaged")
    refused(tmp_path / "post", b"\x00" + saved, "not a file that pathgp has saved")


def test_a_newer_format(saved: bytes, tmp_path: Path) -> None:
    newer = saved[:8] + struct.pack("<I", files.FORMAT + 1) + saved[12:]
    refused(tmp_path / "post", newer, "update pathgp")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pathgp.load(tmp_path / "nothing")


def signed(body: bytes) -> bytes:
    """A file with a digest that is right."""
    return b"\x89pathgp\n" + struct.pack("<I", files.FORMAT) + hashlib.sha256(body).digest() + body


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_is_run(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    payload = pickle.dumps(Malice(evil))
    refused(tmp_path / "post", payload, "not a file that pathgp has saved")
    refused(tmp_path / "post", signed(payload))
    refused(tmp_path / "post", signed(struct.pack("<Q", len(payload)) + payload))
    torch.save({"model": Malice(evil)}, tmp_path / "torch")
    refused(tmp_path / "post", (tmp_path / "torch").read_bytes(), "not a file that pathgp has saved")
    for name in ("os.system", "torch.load", "builtins.eval", "Malice", "Checkpoint", "Solver", "__class__"):
        content = {"device": "cpu", "model": {"$class": name, "path": str(evil)}}
        files.write(tmp_path / "post", content)
        with pytest.raises(ValueError, match="does not describe a posterior"):
            pathgp.load(tmp_path / "post")
    assert not evil.exists()


def test_a_foreign_file(tmp_path: Path) -> None:
    torch.save({"weights": torch.ones(3)}, tmp_path / "torch")
    with pytest.raises(ValueError, match="not a file that pathgp has saved"):
        pathgp.load(tmp_path / "torch")
    files.write(tmp_path / "post", {"something": "else"})
    with pytest.raises(ValueError, match="does not describe a posterior"):
        pathgp.load(tmp_path / "post")


ODD: list[Any] = [None, True, -1, 0, 7, 1.5, float("nan"), "x", [], [1, 2], {}, {"$tensor": 0}, {"$again": 0}]


def test_forged_content_is_refused_or_harmless(saved: bytes, tmp_path: Path) -> None:
    """With a digest that is right: an error that says so, or a posterior of some kind."""
    (length,) = struct.unpack("<Q", saved[44:52])
    header, tensors = json.loads(saved[52 : 52 + length]), saved[52 + length :]
    generator, outcomes = np.random.default_rng(1), {"loaded": 0, "refused": 0}
    for _ in range(400):
        forged = copy.deepcopy(header)
        node: Any = forged
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[generator.integers(len(keys))]
            if not isinstance(node[key], dict | list) or not node[key] or generator.random() < 0.1:
                break
            node = node[key]
        if isinstance(node, dict) and generator.random() < 0.3:
            del node[key]
        else:
            node[key] = ODD[generator.integers(len(ODD))]
        text = json.dumps(forged).encode()
        (tmp_path / "post").write_bytes(signed(struct.pack("<Q", len(text)) + text + tensors))
        try:
            pathgp.load(tmp_path / "post")
            outcomes["loaded"] += 1
        except ValueError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 200


@pytest.mark.parametrize("kind", [["float64", [1 << 60], [0]], ["float64", [-4, -4], [0, 1]], ["complex64", [1], [0]]])
def test_tensors_that_cannot_be(kind: list[Any], tmp_path: Path) -> None:
    header = json.dumps({"byteorder": sys.byteorder, "tensors": [kind], "content": {}}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header + bytes(8)), "not its content")


@pytest.mark.parametrize("content", [[], None, {"$tensor": 0}])
def test_content_without_names(content: Any, tmp_path: Path) -> None:
    header = json.dumps({"byteorder": sys.byteorder, "tensors": [["uint8", [1], [0]]], "content": content}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header + bytes(1)), "not its content")


def test_the_other_byte_order(tmp_path: Path) -> None:
    header = json.dumps({"byteorder": "middle", "tensors": [], "content": {}}).encode()
    refused(tmp_path / "post", signed(struct.pack("<Q", len(header)) + header), "endian")


# What cannot be saved.


class Own(K.SquaredExponential):
    pass


class OwnSolver(solvers.Solver):
    def _solve(self, run: Run) -> Solution:
        return solvers.Cholesky()._solve(run)


class Slope(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return X[:, 0]


class OwnGP(GP):
    pass


def test_what_is_not_of_pathgp_is_named(tmp_path: Path) -> None:
    X = uniform(10)
    same_name = type("Matern", (K.Matern,), {})
    cases: list[tuple[GP, str | solvers.Solver, str]] = [
        (GP(Own() + K.Linear()), "auto", "an object of Own .*kernels and models of your own"),
        (GP(same_name()), "auto", "an object of Matern .*kernels and models of your own"),
        (OwnGP(K.Matern()), "auto", "an object of OwnGP .*kernels and models of your own"),
        (GP(K.Matern()), OwnSolver(), "an object of OwnSolver .*one of pathgp's solvers"),
        (GP(K.Matern(), mean=lambda X: X[:, 0]), "auto", "the function .*lambda.*means.Constant"),
        (GP(K.Matern(), mean=Slope()), "auto", "an object of Slope .*means.Constant"),
    ]
    (tmp_path / "post").write_text("what was there before")
    for gp, solver, words in cases:
        with pytest.raises(TypeError, match=words):
            gp.condition(X, X[:, 0], solver=solver, **BUDGET).save(tmp_path / "post")
    assert (tmp_path / "post").read_text() == "what was there before"


# Files, devices and groups.


def test_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "post"
    posterior = small()
    posterior.save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        small(samples=3).save(path)
    assert [file.name for file in path.parent.iterdir()] == ["post"]
    assert path.read_bytes() == before
    monkeypatch.undo()
    small(samples=3).save(str(path))
    assert pathgp.load(str(path)).num_samples == 3


def test_strides_are_kept(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    tensors = [base, base.permute(2, 0, 1), base[:, :, :0], base[0, 0, 0], base[:, :1].transpose(0, 2), base > 3]
    files.write(tmp_path / "file", {"tensors": tensors, "twice": [tensors[0], tensors[0].long()]})
    content = files.read(tmp_path / "file")
    for found, expected in zip(content["tensors"], tensors, strict=True):
        assert_same(found, expected)
    assert content["tensors"][1].stride() == tensors[1].stride() == (1, 12, 4)
    assert content["twice"][0] is content["tensors"][0]
    with pytest.raises(TypeError, match="complex64"):
        files.write(tmp_path / "file", {"tensor": torch.ones(2, dtype=torch.complex64)})


def test_one_process_takes_over_from_several(tmp_path: Path) -> None:
    group = pathgp.Devices(["cpu", "cpu"])
    posterior, Xs = small(group=group), uniform(5, seed=1)
    found = again(posterior, tmp_path / "post")
    assert found._settings.group is None
    torch.testing.assert_close(found.paths(Xs), posterior.paths(Xs))
    torch.testing.assert_close(found.covariance(Xs), posterior.covariance(Xs))
    group.leader = False
    posterior.save(tmp_path / "of another rank")
    assert not (tmp_path / "of another rank").exists()


def test_a_device_that_is_not_here(tmp_path: Path) -> None:
    posterior = small(backend="dense")
    posterior.save(tmp_path / "post")
    content = files.read(tmp_path / "post")
    files.write(tmp_path / "post", {**content, "device": "cuda:77"})
    found = pathgp.load(tmp_path / "post")
    assert_same(found.mean(uniform(3)), posterior.mean(uniform(3)))
    assert found._settings.backend == "auto"
    with pytest.raises(RuntimeError):
        pathgp.load(tmp_path / "post", device="nowhere")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_from_one_device_to_another(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    X, y, Xs = (part.to("cuda", dtype) for part in case.data(40, 12))
    posterior = GP(case.kernel, 0.3, standardise=case.name != "tanimoto" and "task" not in case.name).condition(
        X, y, samples=6, tol=1e-3, generator=seeded()
    )
    found = again(posterior, tmp_path / "post")
    assert found.model.noise.device.type == "cuda"
    for ask in ("mean", "variance", "paths", "covariance"):
        assert_same(getattr(found, ask)(Xs).cpu(), getattr(posterior, ask)(Xs).cpu())
    moved = pathgp.load(tmp_path / "post", device="cpu")
    moved.save(tmp_path / "moved")
    back = pathgp.load(tmp_path / "moved", device="cuda")
    # Which neighbours tell most may differ by rounding.
    asked = {"mean": {}, "variance": {"method": "samples"}, "paths": {}, "covariance": {}}
    tolerance = {"rtol": 1e-3, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-8, "atol": 1e-8}
    for ask, how in asked.items():
        expected = getattr(posterior, ask)(Xs, **how).cpu()
        torch.testing.assert_close(getattr(moved, ask)(Xs.cpu(), **how), expected, **tolerance)
        torch.testing.assert_close(getattr(back, ask)(Xs, **how).cpu(), expected, **tolerance)
    moved.update(Xs.cpu(), Xs[:, 0].cpu())
    back.update(Xs, Xs[:, 0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_grid_from_one_device_to_another(tmp_path: Path) -> None:
    posterior = grid_posterior(standardise=True)
    posterior.save(tmp_path / "post")
    found = pathgp.load(tmp_path / "post", device="cuda")
    for ask in ("mean", "variance", "paths"):
        torch.testing.assert_close(getattr(found, ask)().cpu(), getattr(posterior, ask)(), rtol=1e-4, atol=1e-5)
    found.update(Grid(2).Y.nan_to_num(0.1).cuda())
