"""The page about the Python API is complete: every public name and every method of `App`, with their parameters."""

from __future__ import annotations

import inspect
import re

import pytest

import twiceproof
from tools.reference.api import app_parts, is_error, signature
from tools.reference.docstrings import docstring
from tools.reference.makers import DOCS

METHODS = {name: method for methods in app_parts().values() for name, method in methods.items()}
NAMES = [name for name in twiceproof.__all__ if name != "__version__"]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(twiceproof, name))]


@pytest.fixture(scope="module")
def page() -> list[str]:
    return (DOCS / "reference/api.md").read_text("utf-8").splitlines()


def test_every_public_name_has_an_entry(page: list[str]) -> None:
    missing = [name for name in NAMES if f"### `{name}`" not in page and not _in_the_table_of_errors(name, page)]
    assert missing == []


def _in_the_table_of_errors(name: str, page: list[str]) -> bool:
    return is_error(name) and any(line.startswith(f"| `{name}` |") for line in page)


def test_every_public_method_of_app_has_an_entry_and_a_docstring(page: list[str]) -> None:
    assert [name for name in METHODS if f"### `app.{name}`" not in page] == []
    assert [name for name, method in METHODS.items() if not docstring(method).text] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    assert docstring(getattr(twiceproof, name)).text


@pytest.mark.parametrize("name", METHODS)
def test_what_an_args_block_explains_are_parameters(name: str) -> None:
    explained, parameters = docstring(METHODS[name]).args, inspect.signature(METHODS[name]).parameters
    assert [one for one in explained if one not in parameters] == []


@pytest.mark.parametrize("name", [*METHODS, *FUNCTIONS])
def test_every_parameter_is_explained_where_it_is_declared(name: str) -> None:
    """An editor shows the docstring alone."""
    function = METHODS.get(name) or getattr(twiceproof, name)
    assert [one for one in inspect.signature(function).parameters if not _explains(docstring_of(name), one)] == []


def docstring_of(name: str) -> str:
    """Return the docstring; of `waiting_for`, that of `wait_for`, to which it refers."""
    found = METHODS.get(name.replace("waiting_for", "wait_for")) or getattr(twiceproof, name)
    return inspect.getdoc(found) or ""


def _explains(text: str, parameter: str) -> bool:
    return parameter in ("self", "args", "kwargs") or re.search(rf"\b{parameter}\b", text) is not None


def test_a_parameter_without_a_word_is_found() -> None:
    assert _explains("`key`: the key", "key") and not _explains("`monkey` and `keys`", "key")


def test_a_docstring_is_read_with_and_without_its_blocks() -> None:
    def plain() -> None:
        """Do it.

        Then rest:
            - a list stays
        """

    def full(key: str, *rest: int) -> None:
        """Do it.

        With care.

        Args:
            key: what it is known by: a text,
                or a function.
            *rest (int): the others.

        Returns:
            What was done.

        Raises:
            Misuse: when it is wrong.
        """

    assert docstring(plain) == ("Do it.\n\nThen rest:\n    - a list stays", {}, "", {})
    text, args, returns, raises = docstring(full)
    assert text == "Do it.\n\nWith care."
    assert args == {"key": "what it is known by: a text, or a function.", "rest": "the others."}
    assert returns == "What was done."
    assert raises == {"Misuse": "when it is wrong."}


def test_a_signature_is_shown_as_it_is_written() -> None:
    unset = object()

    def call(key: str, /, at: float = 1.5, *, name: str = "x", since: object = unset) -> list[str]:
        return []

    assert signature("call", call) == [
        'call(key: str, /, at: float = 1.5, *, name: str = "x", since: object = …) -> list[str]'
    ]
    assert signature("a_rather_long_name_for_a_function", call)[:2] == [
        "a_rather_long_name_for_a_function(",
        "    key: str,",
    ]
