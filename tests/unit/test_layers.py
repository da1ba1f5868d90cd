"""The layout is the architecture: imports point one way."""

from importlinter.cli import lint_imports


def test_imports_point_one_way() -> None:
    assert lint_imports(no_cache=True) == 0
