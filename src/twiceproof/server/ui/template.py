"""Renders templates, and serves what they refer to: style sheets and scripts whose names carry their content's hash."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from jinja2.compiler import CodeGenerator
from jinja2.nodes import Expr

from ...inbound.reply import Reply
from ..request import ApiRequest
from .elements import content, inserted, row_element, state_element, time_element
from .formatting import counted, href, iso, shown_value, sign_of, span

__all__ = ["POLICY_OF_PAGES", "asset", "html", "rendered", "static_name"]

# The strictest policy there is: a script of ours can run, and no script can make HTML.
POLICY_OF_PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# `no-store` and `nosniff` come with every reply of the server.
HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    ("content-security-policy", POLICY_OF_PAGES),
    ("referrer-policy", "same-origin"),  # with no-referrer, the origin of our own forms would be null
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-robots-tag", "noindex"),
)
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
A_YEAR = "public, max-age=31536000, immutable"
HASH_LETTERS = 12


@lru_cache(1)
def _assets() -> dict[str, tuple[str, bytes]]:
    """Return each static file by the name it is served under, with its type."""
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        stem, dot, end = file.name.rpartition(".")
        if dot + end in TYPES:
            body = file.read_bytes()
            name = f"{stem}-{sha256(body).hexdigest()[:HASH_LETTERS]}.{end}"
            found[name] = (TYPES[dot + end], body)
    return found


@lru_cache(16)
def static_name(name: str) -> str:
    """Return the name under which a static file is served."""
    stem, _, end = name.rpartition(".")
    return next(known for known in _assets() if known.startswith(f"{stem}-") and known.endswith(end))


async def asset(call: ApiRequest) -> Reply:
    """Answer with a static file. Its name changes with its content, so that it may be cached for a year."""
    found = _assets().get(call.params["file"])
    if found is None:
        return Reply(404, (("content-type", "text/plain"),), b"There is no such file; reload the page.\n")
    return Reply(200, (("content-type", found[0]), ("cache-control", A_YEAR)), found[1])


def _source(name: str) -> str | None:
    file = files(__package__).joinpath("templates", name)
    return file.read_text("utf-8") if file.is_file() else None


class _OneCall(CodeGenerator):
    """Compiles `{{ value }}` to one call, where Jinja has three: a long list inserts a thousand values."""

    def _output_child_pre(self, node: Expr, frame: Any, finalize: Any) -> None:
        self.write("environment.inserted(")

    def _output_child_post(self, node: Expr, frame: Any, finalize: Any) -> None:
        self.write(")")


class _Environment(Environment):
    code_generator_class = _OneCall
    inserted = staticmethod(inserted)


@lru_cache(1)
def _environment() -> Environment:
    made = _Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "content": content,
        "counted": counted,
        "iso": iso,
        "row": row_element,
        "span": span,
        "state": state_element,
        "static": static_name,
        "time": time_element,
    }
    made.globals |= {
        "href": href,
        "sign_of": sign_of,
        "value_of": shown_value,
    }
    return made


def rendered(template: str, **values: Any) -> bytes:
    """Render a template. A lone surrogate, which cannot be encoded, becomes a question mark."""
    return _environment().get_template(template).render(**values).encode(errors="replace")


def html(body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return a page with the headers that each has. `headers` are added, such as Retry-After."""
    return Reply(status, (*HEADERS, *headers), body)
