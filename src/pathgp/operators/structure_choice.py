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
MIN_STRUCTURED_ROWS = {"field": field.LEAST_ROWS, "toeplitz": toeplitz.LEAST_ROWS}
STRUCTURED_BACKENDS = tuple(MIN_STRUCTURED_ROWS)
# Default accuracy of products.
_DEFAULT_ACCURACY = 1e-5


class InputStructure:
    """Geometry and regular columns of the inputs. They do not depend on hyperparameters and are computed once.

    Args:
        X: the inputs (n, d) with latitudes and longitudes converted to points on a sphere.
        given: the inputs before this conversion.
    """

    def __init__(self, X: Tensor, given: Tensor) -> None:
        self.X, self.geometry, self.layouts = X, Geometry(X), Layouts(given)

    def predict(self, embedding: Embedding, accuracy: float, memory: int) -> tuple[float, str]:
        """Predicted seconds, for 65 columns, of the structured product that "auto" prefers, and its name.

        Infinite if there is none. Toeplitz products are preferred because they are exact: field products must take less
        than half of their time.
        """
        toeplitz_seconds = predict_toeplitz(embedding.given, self.layouts, memory)
        field_seconds = predict_field(embedding.kernel, self.geometry, accuracy, memory) if accuracy else math.inf
        if MUCH_LESS * toeplitz_seconds <= field_seconds:
            return toeplitz_seconds, "toeplitz"
        return field_seconds, "field"

    def choose(self, embedding: Embedding, backend: str, is_kept: bool, accuracy: float, memory: int) -> str:
        """Return "toeplitz" or "field" if it is predicted to take less than half the time of the exact backend, or "".

        ``is_kept``: whether the exact backend keeps a dense K.
        """
        seconds, name = self.predict(embedding, accuracy, memory)
        return name if seconds < MUCH_LESS * predict_exact_product(self.X, backend, is_kept) else ""

    def make_backend(
        self,
        name: str,
        embedding: Embedding,
        exact: Streamed,
        accuracy: float,
        noise: float,
        memory: int,
        reuse: object = None,
    ) -> Structured:
        """The backend of this name; StructureError if it is not possible.

        ``reuse``: a backend that is no longer needed; its memory is overwritten.
        """
        if name == "toeplitz":
            return Toeplitz(exact, embedding.given, self.layouts, memory, reuse)
        return Field(exact, accuracy, noise, memory, self.geometry)


def predict_structured(kernel: Kernel, X: Tensor, backend: str, memory: int) -> tuple[float, str] | None:
    """Predicted seconds per column of the structured product of a `KernelOperator` with this backend, and its name.

    None if the operator would not use a structured product.
    """
    if backend not in ("auto", *STRUCTURED_BACKENDS):
        return None
    embedding = Embedding(kernel, X.shape[1])
    inputs = InputStructure(embedding(X), X)
    if backend == "toeplitz":
        seconds, name = predict_toeplitz(kernel, inputs.layouts, memory), backend
    elif backend == "field":
        seconds, name = predict_field(embedding.kernel, inputs.geometry, _DEFAULT_ACCURACY, memory), backend
    else:
        seconds, name = inputs.predict(embedding, _DEFAULT_ACCURACY, memory)
        if inputs.choose(embedding, exact_backend(X), is_kept=False, accuracy=_DEFAULT_ACCURACY, memory=memory) != name:
            return None
    return None if math.isinf(seconds) else (seconds / COLUMNS, name)


def find_sites(kernel: Kernel, X: Tensor, backend: str, memory: int) -> Tensor | None:
    """Return the index of every row's site (n,) if products use the Toeplitz structure, otherwise None.

    A subset of the rows keeps this structure only if it consists of whole sites.
    """
    prediction = predict_structured(kernel, X, backend, memory)
    if prediction is None or prediction[1] != "toeplitz":
        return None
    layout = Layouts(X).find(kernel)
    return None if layout is None else layout.cell % len(layout.sites)
