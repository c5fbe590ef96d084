from __future__ import annotations

import pytest

from pathgp.compute.optional import import_optional


def test_a_missing_package_names_its_extra() -> None:
    assert import_optional("math", "this test", "xarray").pi > 3.0
    with pytest.raises(ImportError, match=r"this test needs no_such_package: pip install 'pathgp\[xarray\]'"):
        import_optional("no_such_package", "this test", "xarray")
