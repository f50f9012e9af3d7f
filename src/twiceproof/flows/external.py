"""The id that the outside gave: made by a template over a step's result and arguments."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..errors import KeyRefused
from ..keys.template import Template

__all__ = ["external_maker"]

log = logging.getLogger("twiceproof")


def external_maker(text: str | None) -> Callable[[dict[str, Any]], str] | None:
    """`external="invoice:{result[id]}"`. Never fails when used: the step is done, and that fact must be kept."""
    if text is None:
        return None
    template = Template(text)

    def make(known: dict[str, Any]) -> str:
        try:
            return template.render(known)
        except KeyRefused as error:
            log.warning("a step returned no external id: %s", error)
            return ""

    return make
