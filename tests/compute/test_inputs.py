"""Bad input is refused by name with advice; unusual but sound input gives the right answer; nothing is modified."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pathgp
from pathgp.compute.inputs import read_matrix, real_number, whole_number
from pathgp.kernels import Matern, Tanimoto, Task
from pathgp.solvers import CG

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(20, 2))
Y = np.sin(5 * X[:, 0])
XS = RNG.uniform(size=(4, 2))


def gp(**options: Any) -> pathgp.GP:
    return pathgp.GP(Matern(1.5, 0.4), **({"noise": 0.1} | options))


def condition(inputs: Any = X, y: Any = Y, **options: Any) -> pathgp.Posterior:
    return gp().condition(inputs, y, **({"samples": 2, "features": 16} | options))


def put(array: np.ndarray, place: Any, value: float) -> np.ndarray:
    changed = array.copy()
    changed[place] = value
    return changed


class Frame:
    """What pandas and others look like from here: an object with ``__array__``."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)


class Sparse:
    """What a SciPy sparse matrix looks like."""

    def toarray(self) -> np.ndarray:
        return X


REFUSED: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("nan in X", lambda: condition(put(X, (3, 1), np.nan)), ValueError, r"X contains nan at row 3, column 1 \(1 such"),
    ("inf in X", lambda: condition(put(X, (7, 0), np.inf)), ValueError, "X contains inf at row 7, column 0"),
    ("-inf in X", lambda: condition(put(X, (7, 0), -np.inf)), ValueError, "X contains -inf at row 7, column 0"),
    ("nan in y", lambda: condition(y=put(Y, slice(5, 8), np.nan)), ValueError, r"y contains nan at row 5 \(3 such"),
    ("nan in noise", lambda: condition(noise=put(Y, 2, np.nan)), ValueError, "noise contains nan at row 2"),
    ("nan in Xs", lambda: condition().mean(put(XS, (0, 0), np.nan)), ValueError, "Xs contains nan at row 0, column 0"),
    ("nan in X_new", lambda: condition().update(put(XS, (0, 0), np.nan), Y[:4]), ValueError, "X_new contains nan"),
    ("nan in y_new", lambda: condition().update(XS, put(Y, 1, np.nan)[:4]), ValueError, "y_new contains nan at row 1"),
    ("masked X", lambda: condition(np.ma.masked_greater(X, 0.9)), ValueError, "X has masked values"),
    ("dates", lambda: condition(X.astype("datetime64[s]")), TypeError, "datetime64.*; as days: "),
    ("masked y", lambda: condition(y=np.ma.masked_greater(Y, 0.9)), ValueError, "y has masked values"),
    ("X of one dimension", lambda: condition(X[:, 0]), ValueError, r"X must have two dimensions.*X\[:, None\]"),
    ("X of three dimensions", lambda: condition(X[None]), ValueError, r"X must have two dimensions.*\(1, 20, 2\)"),
    ("X a number", lambda: condition(3.0), ValueError, "X must have two dimensions"),
    (
        "Xs of one dimension",
        lambda: condition().mean(XS[0]),
        ValueError,
        r"Xs must have two dimensions.*one row is Xs\[None, :\]",
    ),
    ("y of two dimensions", lambda: condition(y=Y[:, None]), ValueError, r"y must have shape \(20,\).*y\[:, 0\]"),
    ("y a number", lambda: condition(y=1.0), ValueError, r"y must have shape \(20,\)"),
    ("rows that do not match", lambda: condition(y=Y[:-1]), ValueError, r"y must have shape \(20,\).*\(19,\)"),
    ("noise that does not match", lambda: condition(noise=Y[:3] ** 2), ValueError, r"noise must have shape \(20,\)"),
    ("noise one number", lambda: condition(noise=0.1), ValueError, r"noise must have shape.*belongs into the model"),
    ("negative noise", lambda: condition(noise=put(0 * Y, 4, -0.1)), ValueError, "noise is -0.1 at row 4"),
    ("no rows", lambda: condition(X[:0], Y[:0]), ValueError, "X has no rows"),
    ("no columns", lambda: condition(X[:, :0]), ValueError, "X has no columns"),
    ("Xs with other columns", lambda: condition().paths(XS[:, :1]), ValueError, "Xs has 1 columns.*given 2"),
    ("X_new with other columns", lambda: condition().update(X[:, :1], Y), ValueError, "X_new has 1 columns"),
    ("X of strings", lambda: condition(X.astype(str)), TypeError, r"X must be numeric.*X\.astype\(float\)"),
    ("X of objects", lambda: condition(X.astype(object)), TypeError, r"X must be numeric.*X\.astype\(float\)"),
    ("X of dates", lambda: condition(np.full((20, 2), np.datetime64("2020"))), TypeError, "X must be numeric"),
    ("X none", lambda: condition(None), TypeError, "X must be numeric"),
    ("y none", lambda: condition(y=None), TypeError, "y must be numeric"),
    ("X ragged", lambda: condition([[1.0, 2.0], [3.0]], [1.0, 2.0]), ValueError, "X cannot be read as an array"),
    ("X complex", lambda: condition(X + 0j), TypeError, "X must be real"),
    ("X complex tensor", lambda: condition(torch.tensor(X + 0j)), TypeError, "X must be real"),
    ("X half", lambda: condition(X.astype(np.float16)), TypeError, "X is torch.float16: use float32 or float64"),
    ("X bfloat16", lambda: condition(torch.tensor(X).bfloat16()), TypeError, "X is torch.bfloat16"),
    ("X sparse", lambda: condition(Sparse()), TypeError, r"X is sparse.*X\.toarray\(\)"),
    ("X sparse tensor", lambda: condition(torch.tensor(X).to_sparse()), TypeError, "X must be a dense tensor"),
    ("X without values", lambda: condition(torch.empty(20, 2, device="meta")), TypeError, "X must be a dense tensor"),
    ("y elsewhere", lambda: condition(torch.tensor(X), torch.empty(20, device="meta")), TypeError, "y must be a dense"),
    ("X too large", lambda: condition(1e200 * X), ValueError, "X has values beyond.*squares leave the range"),
    ("y too large", lambda: condition(y=1e300 * Y), ValueError, "norm of y is beyond the range"),
    ("y too large for float32", lambda: condition(X.astype("f4"), 3e38 * Y), ValueError, "norm of y is beyond"),
    (
        "variance beyond float32",
        lambda: gp(standardise=True).condition(X.astype("f4"), 1e-25 * Y),
        ValueError,
        "y varies by .*e-26, and its variance leaves the range of float32",
    ),
    ("Xs too large", lambda: condition(X.astype("f4")).mean(1e300 * XS), ValueError, "Xs has values beyond.*float32"),
    ("unknown solver", lambda: condition(solver="foo"), ValueError, "solver must be one of 'auto'.*'foo'"),
    ("solver class", lambda: condition(solver=CG), ValueError, "solver must be one of"),
    ("unknown backend", lambda: condition(compute=pathgp.Compute("foo")), ValueError, "backend must be.*'foo'"),
    ("unknown method", lambda: condition().variance(XS, method="foo"), ValueError, "method must be.*'foo'"),
    ("samples not whole", lambda: condition(samples=2.5), TypeError, "samples must be a whole number, got 2.5"),
    ("samples negative", lambda: condition(samples=-1), ValueError, "samples must be at least 0, got -1"),
    ("features not whole", lambda: condition(features="many"), TypeError, "features must be a whole number"),
    ("no features", lambda: condition(features=0), ValueError, "features must be at least 1"),
    ("too few features", lambda: condition(features=1), ValueError, "needs 2 features"),
    ("no draws", lambda: condition().sample(XS, 0), ValueError, "num must be at least 1"),
    ("draws not whole", lambda: condition().sample(XS, 1.5), TypeError, "num must be a whole number"),
    ("no prior paths", lambda: gp().prior(0), ValueError, "samples must be at least 1"),
    ("tol a string", lambda: condition(tol="tight"), TypeError, "tol must be a number, got 'tight'"),
    ("tol nan", lambda: condition(tol=np.nan), ValueError, "tol must be finite"),
    ("tol negative", lambda: condition(tol=-0.1), ValueError, "tol must not be negative"),
    ("no epochs", lambda: condition(max_epochs=0), ValueError, "max_epochs must be"),
    (
        "memory a string",
        lambda: condition(compute=pathgp.Compute(memory="2G")),
        ValueError,
        "memory must be a number of bytes or a text such as '8GB' or '8 GiB', got '2G'",
    ),
    (
        "memory negative",
        lambda: condition(compute=pathgp.Compute(memory=-1)),
        ValueError,
        "memory is a budget in bytes",
    ),
    ("generator a number", lambda: condition(generator=3), TypeError, "generator must be a torch.Generator"),
    ("model noise negative", lambda: gp(noise=-0.1), ValueError, "noise must be positive and finite"),
    ("model noise zero", lambda: gp(noise=0.0), ValueError, "noise must be positive and finite"),
    ("model noise nan", lambda: gp(noise=np.nan), ValueError, "noise must be positive and finite"),
    ("model noise a vector", lambda: gp(noise=[0.1, 0.2]), ValueError, r"one number.*condition\(noise"),
    ("model noise a string", lambda: gp(noise="low"), TypeError, "noise must be a number, got 'low'"),
    ("model noise none", lambda: gp(noise=None), TypeError, "noise must be a number, got None"),
    ("mean a string", lambda: gp(mean="x"), TypeError, "mean must be a number, a function of X, or a module"),
    ("mean nan", lambda: gp(mean=np.nan), ValueError, "mean must be finite"),
    ("mean of another shape", lambda: gp(mean=lambda Z: Z).condition(X, Y), ValueError, r"mean function.*\(20, 2\)"),
    ("mean not a tensor", lambda: gp(mean=lambda Z: 0.0).condition(X, Y), ValueError, "mean function.*float"),
    ("mean not finite", lambda: gp(mean=lambda Z: Z[:, 0] / 0).condition(X, Y), ValueError, "mean function gave NaN"),
    ("kernel a string", lambda: pathgp.GP("rbf"), TypeError, "kernel must be a pathgp kernel such as.*str"),
    ("kernel a class", lambda: pathgp.GP(Matern), TypeError, "kernel must be a pathgp kernel.*the class Matern"),
    (
        "length scales that do not match",
        lambda: pathgp.GP(Matern(lengthscale=torch.ones(3))).condition(X, Y),
        ValueError,
        "lengthscale has 3 entries, but the inputs have 2 columns",
    ),
    (
        "length scales that do not match, in a fit",
        lambda: pathgp.GP(Matern(lengthscale=torch.ones(3))).fit(X, Y),
        ValueError,
        "lengthscale has 3 entries, but the inputs have 2 columns",
    ),
    (
        "a column that is not there",
        lambda: pathgp.GP(Matern(active_dims=[5])).condition(X, Y, samples=0),
        ValueError,
        "acts on column 5, but X has only 2 columns",
    ),
    (
        "a task that was never declared",
        lambda: pathgp.GP(Task(2, active_dims=[0]) * Matern(active_dims=[1])).condition(put(X, (..., 0), 3), Y),
        ValueError,
        r"task numbers are 0\.\.1, but X has 3 in row 0",
    ),
    ("negative fingerprints", lambda: pathgp.GP(Tanimoto()).condition(X - 1, Y), ValueError, "Tanimoto.*non-negative"),
    (
        "standardised prior",
        lambda: gp(standardise=True).prior(3),
        ValueError,
        r"standardise=True.*only after condition\(\)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


EXPECTED = condition(samples=0).mean(XS)


def strided() -> np.ndarray:
    wide = np.zeros((40, 6))
    wide[::2, ::3] = X
    return wide[::2, ::3]


def locked() -> np.ndarray:
    array = X.copy()
    array.setflags(write=False)
    return array


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("lists", X.tolist(), Y.tolist()),
    ("tuples", tuple(map(tuple, X)), tuple(Y)),
    ("a frame", Frame(X), Frame(Y)),
    ("Fortran order", np.asfortranarray(X), Y),
    ("strides", strided(), np.stack([Y, Y], 1)[:, 0]),
    ("negative strides", X[::-1].copy()[::-1], Y[::-1].copy()[::-1]),
    ("big-endian", X.astype(">f8"), Y.astype(">f8")),
    ("read-only", locked(), Y),
    ("long double", X.astype(np.longdouble), Y.astype(np.longdouble)),
    ("nothing masked", np.ma.masked_invalid(X), np.ma.masked_invalid(Y)),
    ("a matrix", X.view(np.matrix) if hasattr(np, "matrix") else X, Y),
    ("a transposed tensor", torch.tensor(X.T).T, torch.tensor(Y)),
    ("a tensor with a graph", torch.tensor(X, requires_grad=True) * 1.0, torch.tensor(Y, requires_grad=True)),
    ("a parameter", torch.nn.Parameter(torch.tensor(X)), Y),
    ("tensor and array", torch.tensor(X), Y),
    ("array and tensor", X, torch.tensor(Y)),
]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize(("inputs", "targets"), [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_accepted(inputs: Any, targets: Any) -> None:
    post = condition(inputs, targets)
    assert np.allclose(post.mean(XS), EXPECTED, rtol=0, atol=1e-12)
    assert not post.weights.requires_grad
    assert not post.system.X.requires_grad
    # The same kinds are fine where predictions are asked for.
    again = post.mean(inputs)
    reference = condition().mean(X)
    assert np.allclose(torch.as_tensor(again).detach().numpy(), reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint16, np.bool_])
def test_integers_and_booleans_are_numbers(kind: type) -> None:
    rounded = (3 * X).astype(kind)
    expected = condition(rounded.astype(float), (3 * Y).round()).mean(XS)
    for inputs in (rounded, torch.from_numpy(rounded.astype(np.int64))):
        post = condition(inputs, (3 * Y).round())
        assert post.report.precision == "float64"
        assert np.array_equal(post.mean(XS), expected)
    integer_y = condition(X, (3 * Y).round().astype(np.int64)).mean(XS)
    assert np.array_equal(integer_y, condition(X, (3 * Y).round()).mean(XS))


def test_nothing_is_modified() -> None:
    arrays = [X.copy(), Y.copy(), np.abs(Y), XS.copy()]
    tensors = [torch.tensor(a) for a in arrays]
    for inputs in (arrays, tensors):
        before = [np.asarray(a).copy() for a in inputs]
        A, y, noise, As = inputs
        for standardise in (False, True):
            for solver in ("cholesky", "cg", "ap", "sdd"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", pathgp.ConvergenceWarning)
                    post = gp(standardise=standardise).condition(A, y, noise=noise, samples=2, solver=solver)
                post.mean(As), post.paths(As), post.variance(As), post.variance(As, method="solve")
                post.covariance(As), post.sample(As), post.update(As, y[:4], noise=noise[:4])
        assert all(np.array_equal(a, np.asarray(b)) for a, b in zip(before, inputs, strict=True))


@pytest.mark.parametrize("standardise", [False, True])
def test_constant_columns_and_constant_targets(standardise: bool) -> None:
    constant = put(X, (..., 1), 0.1)
    post = gp(standardise=standardise).condition(constant, np.full(20, 3.3), samples=2)
    assert np.isfinite(post.paths(constant)).all()
    if standardise:
        assert np.allclose(post.mean(constant), 3.3)
    one = gp(standardise=standardise).condition(X[:1], Y[:1], samples=2)
    assert np.isfinite(one.paths(XS)).all()
    zero = gp(standardise=standardise).condition(X, 0 * Y, samples=2)
    assert np.array_equal(zero.mean(XS), np.zeros(4))
    assert zero.report.error_bound == 0.0


def test_the_first_bad_value_is_named_in_reading_order() -> None:
    bad = put(put(X, (9, 0), np.inf), (4, 1), np.nan)
    with pytest.raises(ValueError, match=r"X contains nan at row 4, column 1 \(2 such values in all\)"):
        read_matrix(bad)


def test_numbers() -> None:
    assert whole_number(np.int64(3), "n", 0) == 3
    assert real_number(np.float32(0.5), "t") == 0.5
    assert real_number(torch.tensor(0.5), "t") == 0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices_that_do_not_match() -> None:
    inputs = torch.tensor(X, device="cuda")
    with pytest.raises(TypeError, match=r"y is on cpu, the training inputs are on cuda:0: move one of them"):
        condition(inputs, torch.tensor(Y))
    post = condition(inputs, Y)  # arrays have no device of their own
    with pytest.raises(TypeError, match="Xs is on cpu"):
        post.mean(torch.tensor(XS))
    assert np.allclose(post.mean(XS), EXPECTED)


def test_dtypes_by_name() -> None:
    for name in ("float32", "float64"):
        posts = [condition(dtype=dtype, samples=0) for dtype in (name, getattr(torch, name))]
        assert posts[0].report.precision == name
        np.testing.assert_array_equal(posts[0].weights, posts[1].weights)
    inducing = pathgp.InducingGP(Matern(1.5, 0.4), 0.1, inducing=4)
    assert inducing.condition(X, Y, samples=2, dtype="float64").report.precision == "float64"
    with pytest.raises(ValueError, match="computed in float64, got dtype='float32': leave it out"):
        inducing.condition(X, Y, dtype="float32")
