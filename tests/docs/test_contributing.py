"""CONTRIBUTING knows the tree as it is: every folder has its line in the map, and every path that is named exists."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT
from tools.source_tree import SOURCE

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PATH = re.compile(r"`([a-z_]+(?:/[\w.]+)*(?:/|\.py|\.toml|\.yml))`")


def test_every_folder_of_the_source_is_on_the_map() -> None:
    folders = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")} - {"."}
    assert [folder for folder in sorted(folders) if f"`{folder}/`" not in TEXT] == []


def test_every_folder_of_the_tests_is_on_the_map() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    assert [folder for folder in sorted(folders) if f"`tests/{folder}/" not in TEXT] == []


def test_every_path_that_is_named_exists() -> None:
    named = set(PATH.findall(TEXT)) - {"site/"}  # made by `make docs`
    assert len(named) > 40
    beside = (ROOT, SOURCE, SOURCE / "stores", *SOURCE.glob("*/"), *SOURCE.glob("*/*/"))
    assert [path for path in sorted(named) if not any((folder / path).exists() for folder in beside)] == []
