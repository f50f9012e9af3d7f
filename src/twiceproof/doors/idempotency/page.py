"""A refusal for people: the same words as the problem, as a page."""

from __future__ import annotations

from html import escape

import msgspec

from ..reply import Reply

__all__ = ["as_page"]

HTML = "text/html; charset=utf-8"
SHAPE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    "<h1>{title}</h1><p>{detail}</p><p>{next}</p></html>"
)


def as_page(reply: Reply) -> Reply:
    """A browser shows JSON as it is, and its user needs a sentence."""
    words = msgspec.json.decode(reply.body)
    shown = {name: escape(str(words.get(name, ""))) for name in ("title", "detail", "next")}
    kept = [pair for pair in reply.headers if pair[0] != "content-type"]
    return Reply(reply.status, (("content-type", HTML), *kept), SHAPE.format(**shown).encode())
