"""The built-in sources by name; each module is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any

from ...errors import Misuse
from ..source import Source

__all__ = ["SOURCES", "find_source", "source_class"]


SOURCES: dict[str, tuple[str, str]] = {
    "standard_webhooks": ("standard_webhooks", "StandardWebhooks"),
    "svix": ("standard_webhooks", "Svix"),
    "stripe": ("stripe", "Stripe"),
    "github": ("github", "GitHub"),
    "shopify": ("shopify", "Shopify"),
    "slack": ("slack", "Slack"),
    "twilio": ("twilio", "Twilio"),
    "square": ("square", "Square"),
    "paypal": ("paypal", "PayPal"),
    "cloudevents": ("cloudevents", "CloudEvents"),
    "event_grid": ("event_grid", "EventGrid"),
    "dataverse": ("dataverse", "Dataverse"),
    "generic": ("generic", "Generic"),
}


def find_source(name: str, **options: Any) -> Source:
    """Create a built-in source with its options."""
    make = source_class(name)
    try:
        signature(make).bind(**options)
    except TypeError:
        known = signature(make).parameters
        unknown = _listed(option for option in options if option not in known) or _listed(options) or "nothing"
        raise Misuse(f"{name} was given {unknown}; it takes {_listed(known) or 'no options'}.") from None
    return make(**options)


def source_class(name: str) -> type[Source]:
    if name not in SOURCES:
        raise Misuse(f"There is no source {name!r}; use one of {', '.join(sorted(SOURCES))}, or a Source of your own.")
    module, kind = SOURCES[name]
    found: type[Source] = getattr(import_module(f".{module}", __package__), kind)
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"{name}=" for name in names)
