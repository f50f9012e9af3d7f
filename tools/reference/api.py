"""The Python API: every public name of the package and every method of `App`, with signature and docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType
from typing import Any

import msgspec

import twiceproof
from twiceproof import App
from twiceproof.errors import TwiceproofError, TwiceproofWarning

from .docstrings import docstring
from .table import code, prose, table

__all__ = ["app_methods", "app_parts", "constructor", "effect_block", "errors", "is_error", "public", "signature"]

WIDTH = 100
WITH_METHODS = {"Resource"}  # users call them; the methods of the other classes are called by the engine
PLAIN = (bytes, int, float, bool, tuple, type(None))  # defaults that are shown as they are


def app_parts() -> dict[str, dict[str, FunctionType]]:
    """The public methods of `App` by the module in which they are written, in the order in which they are."""
    parts: dict[str, dict[str, FunctionType]] = {}
    for kind in reversed(App.__mro__):
        methods = {name: found for name, found in vars(kind).items() if _is_public_method(name, found)}
        parts.setdefault(kind.__module__.rpartition(".")[2], {}).update(methods)
    return {module: _as_written(methods) for module, methods in parts.items() if methods}


def _as_written(methods: dict[str, FunctionType]) -> dict[str, FunctionType]:
    return dict(sorted(methods.items(), key=lambda entry: entry[1].__code__.co_firstlineno))


def _is_public_method(name: str, found: Any) -> bool:
    return not name.startswith("_") and isinstance(found, FunctionType)


def app_methods(module: str) -> list[str]:
    """An entry for each method that one module of `twiceproof.app` gives to `App`."""
    lines: list[str] = []
    for name, method in app_parts()[module].items():
        lines += _entry(f"app.{name}", method)
    return lines[:-1]


def constructor(_: str) -> list[str]:
    """`App` itself."""
    return _entry("App", App)[:-1]


def public(names: str) -> list[str]:
    """An entry for each of these names of the package."""
    lines: list[str] = []
    for name in names.split():
        lines += _entry(name, getattr(twiceproof, name))
    return lines[:-1]


def effect_block(words: str) -> list[str]:
    """An entry for each of these names of a block of effects: `sql find_or_create upsert`."""
    block, *names = words.split()
    module = import_module(f"twiceproof.effects.{block}")
    lines: list[str] = []
    for name in names:
        lines += _entry(f"{block}.{name}", getattr(module, name))
    return lines[:-1]


def errors(_: str) -> list[str]:
    """Errors and warnings with their first sentence: the page about errors says more."""
    found = [name for name in twiceproof.__all__ if is_error(name)]
    return table(("error", "when"), [(code(name), _first_sentence(getattr(twiceproof, name))) for name in found])


def is_error(name: str) -> bool:
    kind = getattr(twiceproof, name)
    return isinstance(kind, type) and issubclass(kind, TwiceproofError | TwiceproofWarning)


def _first_sentence(kind: Any) -> str:
    text = " ".join(docstring(kind).text.split()).partition(" Next: ")[0]
    return prose(text.partition(" Carries ")[0])


def _entry(title: str, what: Any) -> list[str]:
    lines = [f"### `{title}`", "", *_shown(title, what)]
    if title in WITH_METHODS:
        for name, found in vars(what).items():
            if _is_public_method(name, found):
                lines += _shown(f"{title.lower()}.{name}", found)
    return lines


def _shown(title: str, what: Any) -> list[str]:
    return ["```py", *signature(title, what), "```", "", *_explained(what)]


def _explained(what: Any) -> list[str]:
    """The text, then the parameters where an `Args:` block explains them."""
    found = docstring(what)
    lines = [found.text, ""] if found.text else []
    if found.args:
        lines += [*table(("parameter", "meaning"), _rows(found.args)), ""]
    if found.returns:
        lines += [f"Returns {_lowered(found.returns)}", ""]
    if found.raises:
        lines += [*table(("raises", "when"), _rows(found.raises)), ""]
    return lines


def _rows(entries: dict[str, str]) -> list[tuple[str, str]]:
    return [(code(name), prose(text)) for name, text in entries.items()]


def _lowered(text: str) -> str:
    """A sentence that goes on from another word; a name at its beginning stays as it is."""
    return text if not text[1:2].islower() else text[0].lower() + text[1:]


def signature(title: str, what: Any) -> list[str]:
    """How it is called, as it is written in the source: in one line if that is short, else one parameter per line."""
    parameters = [_parameter(one) for one in _parameters(what)]
    returned = _returned(what)
    short = f"{title}({', '.join(parameters)}){returned}"
    if len(short) <= WIDTH:
        return [short]
    return [f"{title}(", *(f"    {one}," for one in parameters), f"){returned}"]


def _parameters(what: Any) -> Iterator[inspect.Parameter | str]:
    """Parameters with the marks `*` and `/` between them; a method is shown without its `self`."""
    found = list(inspect.signature(what).parameters.values())
    if isinstance(what, FunctionType) and found and found[0].name == "self":
        found = found[1:]
    before: Any = None
    for one in found:
        if before is not None and before.kind is one.POSITIONAL_ONLY and one.kind is not one.POSITIONAL_ONLY:
            yield "/"
        if one.kind is one.KEYWORD_ONLY and (before is None or before.kind < one.VAR_POSITIONAL):
            yield "*"
        yield one.replace(annotation=_annotation(what, one))
        before = one
    if before is not None and before.kind is before.POSITIONAL_ONLY:
        yield "/"


def _annotation(what: Any, parameter: inspect.Parameter) -> Any:
    """As it is written: msgspec has resolved those of a struct, which would show whole module paths."""
    if isinstance(what, type) and issubclass(what, msgspec.Struct):
        for kind in what.__mro__:
            if parameter.name in getattr(kind, "__annotations__", {}):
                return kind.__annotations__[parameter.name]
    return parameter.annotation


def _parameter(one: inspect.Parameter | str) -> str:
    if isinstance(one, str):
        return one
    stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    said = "" if one.annotation is one.empty else f": {_type(one.annotation)}"
    if one.default is one.empty:
        return f"{stars}{one.name}{said}"
    return f"{stars}{one.name}{said}{' = ' if said else '='}{_default(one.default)}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if isinstance(value, PLAIN) else "…"


def _returned(what: Any) -> str:
    if isinstance(what, type):
        return ""
    annotation = inspect.signature(what).return_annotation
    return "" if annotation is inspect.Signature.empty else f" -> {_type(annotation)}"
