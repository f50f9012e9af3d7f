"""What is proved: a flow, the app it belongs to, and what it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ..app import App
from ..errors import Misuse
from ..flows.flow import Flow

__all__ = ["Target", "other_payload", "spread", "target_of"]


class Target(Struct, frozen=True):
    app: App
    flow: Flow
    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    then: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()  # later events of the same object
    callbacks: dict[str, Any] = {}  # what is sent to the run's waits, by name
    approve: tuple[str, ...] = ()  # approvals that somebody says yes to


def target_of(function: Any, *args: Any, **kwargs: Any) -> Target:
    flow = getattr(function, "flow", None)
    if not isinstance(flow, Flow):
        raise Misuse("prove needs a function under @app.flow; name one, such as shop:sync_order.")
    return Target(_app_of(flow), flow, function, args, kwargs)


def spread(function: Any, event: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An event is passed whole to a flow with one parameter, otherwise spread by name."""
    flow = getattr(function, "flow", None)
    whole = not isinstance(flow, Flow) or len(flow.inputs.names) == 1 or not isinstance(event, dict)
    return ((event,), {}) if whole else ((), event)


def other_payload(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same event with one more field, in the first argument that can have one."""
    for number, value in enumerate(args):
        if isinstance(value, dict):
            return (*args[:number], {**value, "changed_by_prove": True}, *args[number + 1 :]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, dict):
            return args, {**kwargs, name: {**value, "changed_by_prove": True}}
    return args, kwargs


def _app_of(flow: Flow) -> App:
    """Found where the function finds it: among the names that it can see."""
    function = inspect.unwrap(flow.function)
    seen = [*inspect.getclosurevars(function).nonlocals.values(), *getattr(function, "__globals__", {}).values()]
    for value in seen:
        if isinstance(value, App) and value.parts is flow.parts:
            return value
    raise Misuse(f"The app of {flow.name} was not found beside it; keep it in a variable of the same module.")
