"""The layout is the architecture: imports point one way, and files stay small enough to read."""

from pathlib import Path

from importlinter.cli import lint_imports

MOST_LINES = 600
MOST_ROOT_MODULES = 14
MOST_ENTRIES = 20
ROOT = Path(__file__).parents[2]


def test_imports_point_one_way() -> None:
    assert lint_imports(no_cache=True) == 0


def test_every_file_can_be_read_in_one_sitting() -> None:
    files = [file for place in ("src", "tests", "bench") for file in (ROOT / place).rglob("*.py")]
    assert len(files) > 100
    lines = {str(file.relative_to(ROOT)): file.read_text().count("\n") for file in files}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_few_modules_lie_beside_the_packages() -> None:
    modules = sorted(file.stem for file in (ROOT / "src" / "ackflow").glob("*.py"))
    assert len(modules) <= MOST_ROOT_MODULES, modules


def test_no_folder_is_a_heap() -> None:
    folders = [path.parent for path in (ROOT / "src" / "ackflow").rglob("__init__.py")]
    root, *packages = sorted(folders)
    assert root.name == "ackflow"
    entries = {
        str(folder.relative_to(ROOT)): len(
            [path for path in folder.iterdir() if not path.name.startswith("__")]
        )
        for folder in packages
    }
    assert len(entries) > 20
    assert {name: n for name, n in entries.items() if n > MOST_ENTRIES} == {}
