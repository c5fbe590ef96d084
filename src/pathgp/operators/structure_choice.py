"""Which structured products a kernel and its inputs allow, and which of them "auto" chooses."""

from __future__ import annotations

import math

from torch import Tensor

from pathgp.kernels import Kernel
from pathgp.kernels.sphere import Embedding
from pathgp.operators import field, toeplitz
from pathgp.operators.field import Field, Geometry, predict_field
from pathgp.operators.streamed import Streamed
from pathgp.operators.structured import COLUMNS, MUCH_LESS, Structured, exact_backend, predict_exact_product
from pathgp.operators.toeplitz import Layouts, Toeplitz, predict_toeplitz

# The least number of rows for which "auto" considers structured products.
STRUCTURED_ROWS = {"field": field.LEAST_ROWS, "toeplitz": toeplitz.LEAST_ROWS}
STRUCTURED = tuple(STRUCTURED_ROWS)
# The accuracy of operators by default.
_ACCURACY = 1e-5


class Inputs:
    """What structured products need to know about inputs, for all hyperparameters.

    Args:
        X: the inputs of K as it is evaluated (n, d), points on a sphere for latitudes and longitudes.
        given: the inputs as they were given: X without a sphere.
    """

    def __init__(self, X: Tensor, given: Tensor) -> None:
        self.X, self.geometry, self.layouts = X, Geometry(X), Layouts(given)

    def predict(self, embedding: Embedding, accuracy: float, memory: int) -> tuple[float, str]:
        """Predicted seconds of the faster structured product with 65 columns, and its name; infinite without one.

        Toeplitz products are preferred because they are exact: field products must take less than half of their time.
        """
        toeplitz_seconds = predict_toeplitz(embedding.given, self.layouts, memory)
        field_seconds = predict_field(embedding.kernel, self.geometry, accuracy, memory) if accuracy else math.inf
        if MUCH_LESS * toeplitz_seconds <= field_seconds:
            return toeplitz_seconds, "toeplitz"
        return field_seconds, "field"

    def choose(self, embedding: Embedding, backend: str, is_kept: bool, accuracy: float, memory: int) -> str:
        """The structured products that are predicted to take less than half the time of an exact backend, or "".

        ``is_kept``: whether that backend keeps a dense K.
        """
        seconds, name = self.predict(embedding, accuracy, memory)
        return name if seconds < MUCH_LESS * predict_exact_product(self.X, backend, is_kept) else ""

    def make(
        self,
        name: str,
        embedding: Embedding,
        exact: Streamed,
        accuracy: float,
        noise: float,
        memory: int,
        reused: object = None,
    ) -> Structured:
        """The backend of this name; StructureError if it is not possible. ``reused``: one that is no longer needed."""
        if name == "toeplitz":
            return Toeplitz(exact, embedding.given, self.layouts, memory, reused)
        return Field(exact, accuracy, noise, memory, self.geometry)


def predict_structured(kernel: Kernel, X: Tensor, backend: str, memory: int) -> tuple[float, str] | None:
    """Predicted seconds per column of the structured product of a `KernelOperator` with this backend, and its name.

    None if the operator would not use a structured product.
    """
    if backend not in ("auto", *STRUCTURED):
        return None
    embedding = Embedding(kernel, X.shape[1])
    inputs = Inputs(embedding(X), X)
    if backend == "toeplitz":
        seconds, name = predict_toeplitz(kernel, inputs.layouts, memory), backend
    elif backend == "field":
        seconds, name = predict_field(embedding.kernel, inputs.geometry, _ACCURACY, memory), backend
    else:
        seconds, name = inputs.predict(embedding, _ACCURACY, memory)
        if inputs.choose(embedding, exact_backend(X), False, _ACCURACY, memory) != name:
            return None
    return None if math.isinf(seconds) else (seconds / COLUMNS, name)


def find_groups(kernel: Kernel, X: Tensor, backend: str, memory: int) -> Tensor | None:
    """The site (n,) of every row if there are Toeplitz products, otherwise None.

    Subsets of the rows must consist of whole sites to have them, too.
    """
    prediction = predict_structured(kernel, X, backend, memory)
    if prediction is None or prediction[1] != "toeplitz":
        return None
    layout = Layouts(X).find(kernel)
    return None if layout is None else layout.cell % len(layout.sites)
