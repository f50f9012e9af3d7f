"""What changes between two releases of a flow, by meaning: key, triggers, steps, how they may be repeated, effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from .model import ActingSpec, FlowFile, ProbeSpec, TriggerSpec
from .reading import ReadFlow, ReadStep, walk
from .template import key_template

__all__ = ["FlowDifference", "differences"]


APART = ("flow", "key", "on", "steps", "on_error", "tests", "input", "ignore")  # fields that are compared one by one


class FlowDifference(Struct, frozen=True):
    """One change. `late`: late duplicates of earlier work would not be recognised, or would be refused."""

    what: str  # key, input, trigger, step, repeat, effect, setting
    name: str
    before: str = ""
    after: str = ""
    late: str = ""

    def line(self) -> str:
        return f"{self.what} {self.name}: {self.before or '(none)'} → {self.after or '(none)'}"


def differences(before: ReadFlow, after: ReadFlow) -> list[FlowDifference]:
    """Return what changes from one release to another. Both must be free of errors."""
    old, new = before.file, after.file
    assert old is not None and new is not None  # noqa: S101 - sound files only
    return [
        *_identity(old, new),
        *_compared("trigger", _triggers(old), _triggers(new)),
        *_steps(_by_name(before), _by_name(after)),
        *_compared("setting", _settings(old), _settings(new)),
    ]


def _identity(old: FlowFile, new: FlowFile) -> Iterator[FlowDifference]:
    """The settings by which a late duplicate is recognised."""
    if key_template(old.key) != key_template(new.key):
        late = "late duplicates of finished work would be done again"
        yield FlowDifference("key", new.flow, old.key, new.key, late)
    late = "late duplicates are refused where their payload differs; leave new fields out of the comparison: ignore"
    for one in _compared("input", old.input, new.input):
        yield one if one.name in new.ignore else structs.replace(one, late=late)
    for one in _compared("ignore", dict.fromkeys(old.ignore, "ignored"), dict.fromkeys(new.ignore, "ignored")):
        yield structs.replace(one, late="late duplicates are compared by other fields than before")


def _compared(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FlowDifference]:
    for name in (*old, *(name for name in new if name not in old)):
        if old.get(name) != new.get(name):
            yield FlowDifference(what, name, _text(old.get(name)), _text(new.get(name)))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _triggers(file: FlowFile) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for trigger in file.on:
        if isinstance(trigger, TriggerSpec):
            kind = next(
                (kind for kind in ("webhook", "schedule", "every", "queue") if getattr(trigger, kind)), "trigger"
            )
            said = {name: value for name, value in structs.asdict(trigger).items() if value not in (None, {})}
            found[f"{kind} {trigger.name or said.get(kind, '')}".strip()] = said
        else:
            found[str(trigger)] = "by hand"
    return found


def _settings(file: FlowFile) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(file).items() if name not in APART}


# -- steps ---------------------------------------------------------------------------------------


def _by_name(read: ReadFlow) -> dict[str, ReadStep]:
    """Return every step by its name in the ledger; one without a name by its verb and target."""
    found: dict[str, ReadStep] = {}
    for step in walk((*read.steps, *read.on_error)):
        about = getattr(step.spec, step.verb, "")
        name = step.name or f"{step.verb} {about if isinstance(about, str) else ''}".strip()
        while name in found:
            name += "'"
        found[name] = step
    return found


def _steps(old: dict[str, ReadStep], new: dict[str, ReadStep]) -> Iterator[FlowDifference]:
    gone = [name for name in old if name not in new]
    come = [name for name in new if name not in old]
    for name in list(gone):
        twin = next((other for other in come if _said(old[name]) == _said(new[other])), None)
        if twin is not None:
            gone.remove(name)
            come.remove(twin)
            yield FlowDifference("step", "renamed", name, twin)
    yield from (FlowDifference("step", "removed", name) for name in gone)
    yield from (FlowDifference("step", "added", "", name) for name in come)
    for name, step in old.items():
        if name in new:
            yield from _step(name, step, new[name])


def _said(step: ReadStep) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(step.spec).items() if name != "step"}


def _step(name: str, old: ReadStep, new: ReadStep) -> Iterator[FlowDifference]:
    before, after = _said(old), _said(new)
    if _repeat(old) != _repeat(new):
        yield FlowDifference("repeat", name, _repeat(old), _repeat(new))
    if (old.verb, before.get(old.verb)) != (new.verb, after.get(new.verb)):
        yield FlowDifference("effect", name, _effect(old), _effect(new))
    for field in (*before, *(field for field in after if field not in before)):
        if field not in ("repeat", old.verb, new.verb) and before.get(field) != after.get(field):
            yield FlowDifference(
                "step", f"{name}.{field}", _text(_plain(before.get(field))), _text(_plain(after.get(field)))
            )


def _repeat(step: ReadStep) -> str:
    repeat = step.spec.repeat if isinstance(step.spec, ActingSpec) else None
    if isinstance(repeat, ProbeSpec):
        return _text(_plain(repeat))
    return repeat or ""


def _effect(step: ReadStep) -> str:
    about = getattr(step.spec, step.verb, "")
    return f"{step.verb}: {about if isinstance(about, str) else '…'}"


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        told = structs.asdict(value)
        return {name: _plain(one) for name, one in told.items() if one is not msgspec.UNSET and one is not None}
    return None if value is msgspec.UNSET else value
