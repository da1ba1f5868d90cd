"""Names that were replaced stay replaced: one meaning, one word, and the words of this field."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "ackflow"
# Modules and folders by where they must not be; the dialects use the words of their systems.
MODULES = {
    "": "bell bury codec feeding gathering green helping judging ledger looking measure onloop "
        "patience policy regain renewal sealing straight syncing tally telling unread",
    "session": "checks consume copying delivery verbs",
    "broker": "ahead dead expire figures hands inspect lag lanes letters locate lock maintenance named "
              "overview pick quiet read recent room streams subscribe tokens traces waiting",
    "broker/readers": "batch reader",
    "store": "asking ballast channel copying examine forms holds levels rows writer",
    "remote": "requests sync",
    "server": "access cross guard observe rows",
    "middleware": "delivery ends",
    "spark": "chunks judging link start",
    "pipeline": "ends exact failing folders held keeping masters recovery standby upstream words",
    "cli": "inputs live shell where",
}  # fmt: skip
# Names that no other system uses, so that dialects do not have them either.
NO_DIALECT = ["gathering", "green", "onloop", "patience", "regain", "syncing", "tally"]
FUNCTIONS = {
    "born",
    "posted",
    "saw",
    "shown",
    "spent",
    "tell",
    "told",
    "untell",
    "whole",
    "onloop",
    "patience",
}
CLASSES = {
    "Told",
    "Place",
    "Refused",
    "Popped",
    "Kind",
    "Taken",
    "Part",
    "Piece",
    "Share",
    "Lot",
    "Hand",
    "HandPart",
}
ALLOWED = {
    ("pipeline/answers.py", "_whole"),  # the SQL function whole(), which queries of users call
}


def test_no_module_has_a_replaced_name() -> None:
    found = []
    for folder, names in MODULES.items():
        for path in (ROOT / folder).rglob("*"):
            own_words = "examples" in path.parts or (
                path.is_relative_to(ROOT / "dialects") and path.stem not in NO_DIALECT
            )
            if path.stem in names.split() and not own_words and path.suffix in ("", ".py"):
                found.append(str(path.relative_to(ROOT)))
    assert found == []


def test_no_function_or_class_has_a_replaced_name() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        place = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                replaced = node.name.strip("_") in FUNCTIONS
            elif isinstance(node, ast.ClassDef):
                replaced = node.name.strip("_") in CLASSES
            else:
                continue
            if replaced:
                found.add((place, node.name))
    assert found <= ALLOWED, found - ALLOWED
