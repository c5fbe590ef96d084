"""Fingerprints of molecules."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import pathgp
from pathgp import kernels

pytest.importorskip("rdkit", reason="molecules need RDKit")
pytest.importorskip("sklearn", reason="the transformer needs scikit-learn")

from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from pathgp.chem import MorganFingerprints, fingerprints
from pathgp.sklearn import GPRegressor

SMILES = ["CCO", "CCN", "c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O", "CCCCCC", "O"]


@pytest.mark.parametrize("counts", [True, False])
def test_those_of_rdkit(counts: bool) -> None:
    found = fingerprints(SMILES, radius=1, size=256, counts=counts)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=1, fpSize=256)
    name = "GetCountFingerprintAsNumPy" if counts else "GetFingerprintAsNumPy"
    expected = np.stack([getattr(generator, name)(Chem.MolFromSmiles(text)) for text in SMILES])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    thin = fingerprints(SMILES, radius=1, size=256, counts=counts, sparse=True)
    assert sparse.issparse(thin)
    np.testing.assert_array_equal(thin.toarray(), expected)


def test_errors_name_the_row() -> None:
    with pytest.raises(ValueError, match=r"row 1 is not a valid SMILES: 'C\(C'"):
        fingerprints(["CC", "C(C"])
    with pytest.raises(ValueError, match="row 2 is an empty SMILES"):
        fingerprints(["CC", "C", " "])
    with pytest.raises(TypeError, match="row 0 is nan, of float"):
        fingerprints([float("nan")])
    with pytest.raises(TypeError, match="row 1 is None, of NoneType: remove the row or give its SMILES"):
        fingerprints(["CC", None])
    with pytest.raises(TypeError, match=r"use \['CC'\]"):
        fingerprints("CC")
    with pytest.raises(ValueError, match="radius must be at least 0"):
        fingerprints(SMILES, radius=-1)
    with pytest.raises(ValueError, match=r"one column of SMILES, got shape \(1, 2\)"):
        MorganFingerprints().transform([["C", "CC"]])


def test_what_is_not_a_list_of_smiles() -> None:
    for wrong, kind in ((None, "NoneType"), ({"smiles": SMILES}, "dict"), (np.array([SMILES]), "ndarray")):
        with pytest.raises(TypeError, match=rf"one column, such as table\['smiles'\], got {kind}"):
            fingerprints(wrong)


def test_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"smiles": SMILES}, index=range(9, 15))
    with pytest.raises(TypeError, match=r"such as table\['smiles'\], got DataFrame"):
        fingerprints(frame)
    expected = fingerprints(SMILES, size=64)
    np.testing.assert_array_equal(fingerprints(frame["smiles"], size=64), expected)
    np.testing.assert_array_equal(MorganFingerprints(size=64).fit_transform(frame), expected)


def test_no_molecules() -> None:
    assert fingerprints([], size=16).shape == (0, 16)


def test_in_a_pipeline() -> None:
    transformer = clone(MorganFingerprints(radius=1, size=64))
    assert transformer.get_params() == {"radius": 1, "size": 64, "counts": True, "sparse": False}
    assert len(transformer.get_feature_names_out()) == 64
    column = np.array(SMILES, dtype=object)[:, None]
    np.testing.assert_array_equal(transformer.transform(column), transformer.transform(SMILES))
    regressor = GPRegressor(kernel=kernels.Tanimoto(), standardise=False, steps=1, samples=2)
    predictions = []
    for is_sparse in (False, True):
        model = make_pipeline(clone(transformer).set_params(sparse=is_sparse), clone(regressor))
        predictions.append(model.fit(SMILES, np.arange(6.0)).predict(SMILES[:2]))
    np.testing.assert_allclose(*predictions, rtol=1e-5)


def test_as_inputs_of_a_model() -> None:
    X = fingerprints(SMILES, radius=1, size=64)
    post = pathgp.GP(kernels.Tanimoto(), 0.1).condition(X, np.arange(6.0), samples=2, features=16)
    assert post.mean(X).shape == (6,)
