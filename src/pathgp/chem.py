"""Door to RDKit: molecules as fingerprints for `kernels.Tanimoto`.

    from pathgp.chem import MorganFingerprints, fingerprints

    X = fingerprints(["CCO", "c1ccccc1"], radius=1, size=1024)          # (2, 1024) counts
    pool = fingerprints(many_smiles, sparse=True)                       # a sparse matrix, less memory
    make_pipeline(MorganFingerprints(), GPRegressor(kernel=kernels.Tanimoto(), standardise=False))

A Morgan fingerprint counts the groups of atoms within a radius of every atom, folded to a fixed number of columns
(Rogers and Hahn, 2010). Thesis, section 4.3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse as sp

from pathgp.compute.inputs import whole_number

try:
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdFingerprintGenerator
    from sklearn.base import BaseEstimator, TransformerMixin
except ImportError as error:
    raise ImportError(
        "molecules need RDKit and scikit-learn: pip install 'pathgp[chem]', in a checkout pip install '.[chem]'"
    ) from error

# Characters of a SMILES that an error shows.
_SHOWN = 80


def fingerprints(
    smiles: Sequence[str],
    radius: int = 2,
    size: int = 2048,
    counts: bool = True,
    sparse: bool = False,
    name_row: Callable[[int], str] = "row {}".format,
) -> Any:
    """Return the Morgan fingerprints of molecules (n, size), float32.

    Args:
        smiles: n SMILES strings.
        radius: largest distance of an atom from the centre of a group, in bonds.
        size: number of columns; groups are assigned to columns by a hash.
        counts: count the groups; False marks with 1 which groups occur.
        sparse: return a `scipy.sparse.csr_matrix`, which models with `kernels.Tanimoto` accept as it is; memory
            O(number of groups) in place of O(n size).
        name_row: the name of a row in errors, such as the line of its file.

    Raises:
        ValueError: for a text that is not a SMILES, or an empty one, with its row.
    """
    radius, size = whole_number(radius, "radius", 0), whole_number(size, "size", 1)
    if isinstance(smiles, str):
        raise TypeError(f"smiles must be a list of SMILES, got the one text {smiles!r}: use [{smiles!r}]")
    is_table = hasattr(smiles, "columns") or getattr(smiles, "ndim", 1) != 1
    if is_table or isinstance(smiles, Mapping) or not isinstance(smiles, Iterable):
        kind = type(smiles).__name__
        raise TypeError(f"smiles must be a list of SMILES or one column, such as table['smiles'], got {kind}")
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=size)
    columns, values, ends = [], [], [0]
    for row, text in enumerate(smiles):
        groups = generator.GetCountFingerprint(_molecule(text, name_row(row))).GetNonzeroElements()
        columns += sorted(groups)
        values += [groups[column] if counts else 1 for column in sorted(groups)]
        ends.append(len(columns))
    matrix = sp.csr_matrix((np.array(values, dtype=np.float32), columns, ends), shape=(len(ends) - 1, size))
    return matrix if sparse else matrix.toarray()


def _molecule(text: Any, row: str) -> Any:
    if not isinstance(text, str):
        raise TypeError(f"{row} is {text!r}, of {type(text).__name__}: remove the row or give its SMILES, a text")
    shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
    if not text.strip():
        raise ValueError(f"{row} is an empty SMILES: remove the row or give its molecule")
    # RDKit would print its own message as well.
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(text)
    if molecule is None:
        raise ValueError(f"{row} is not a valid SMILES: {shown}; correct or remove the row")
    if molecule.GetNumAtoms() == 0:
        raise ValueError(f"{row} has a SMILES without atoms: {shown}; remove the row")
    return molecule


@dataclass(kw_only=True, repr=False, eq=False)
class MorganFingerprints(TransformerMixin, BaseEstimator):
    """A transformer of scikit-learn from SMILES to fingerprints, see `fingerprints`.

    ``transform`` takes a list of n SMILES, or a table (n, 1) with one column of them, and returns (n, size).
    """

    radius: int = 2
    size: int = 2048
    counts: bool = True
    sparse: bool = False

    def fit(self, X: Any, y: Any = None) -> MorganFingerprints:
        """Do nothing: fingerprints have no parameters to learn."""
        return self

    def transform(self, X: Any) -> Any:
        """Fingerprints of the molecules."""
        return fingerprints(self._texts(X), self.radius, self.size, self.counts, self.sparse)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the columns: morgan0, morgan1, ..."""
        return np.array([f"morgan{column}" for column in range(self.size)], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def _texts(self, X: Any) -> Sequence[str]:
        table = np.asarray(X, dtype=object)
        if table.ndim == 2 and table.shape[1] == 1:
            table = table[:, 0]
        if table.ndim != 1:
            raise ValueError(f"expected one column of SMILES, got shape {table.shape}")
        return list(table)
