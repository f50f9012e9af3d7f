"""The reference of the middleware cannot drift: every setting and every refusal is in it."""

from __future__ import annotations

import inspect
import re

import pytest

from tests.docs.blocks import ROOT
from twiceproof import middleware as idempotency
from twiceproof.middleware import problems

PAGE = (ROOT / "docs/reference/idempotency-key.md").read_text("utf-8")
KINDS = re.findall(r'problem\(\s*(?:\d{3}|status),\s*"([a-z-]+)"', inspect.getsource(problems))


@pytest.mark.parametrize("name", idempotency.Route.__struct_fields__[1:])
def test_every_word_of_a_route_is_documented(name):
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("door", [idempotency.IdempotencyKey, idempotency.WsgiIdempotencyKey])
def test_every_argument_of_the_middleware_is_documented(door):
    arguments = [name for name in inspect.signature(door).parameters if name != "inner"]
    assert [name for name in arguments if f"| `{name}` |" not in PAGE] == []


@pytest.mark.parametrize(
    "kind", sorted({*KINDS} - {"handler-failed"})
)  # that one is an answer, made where none was left
def test_every_refusal_is_documented(kind):
    assert f"`{kind}`" in PAGE


def test_the_refusals_were_found():
    assert len(KINDS) >= 15


@pytest.mark.parametrize("name", idempotency.__all__)
def test_every_public_name_is_documented(name):
    assert name in PAGE
