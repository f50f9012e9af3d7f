"""The rules: each takes a flow, a step or a webhook as it is declared, and yields what it finds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...doors.hook import Hook
from ...flows.flow import Flow
from ...flows.step import Step
from ...keys.stability import name_sign
from .effects import changes_each_time, creates, reaches_outside
from .finding import RULES, Finding
from .source import Source, literal

__all__ = ["of_flow", "of_hook", "of_step", "steps_in"]

LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def of_flow(flow: Flow) -> Iterator[Finding]:
    source = Source(flow.function)
    yield from _key(flow, source)
    yield from _body(flow, source)
    yield from _order(flow, source)
    yield from _loops(flow, source)


def of_step(step: Step) -> Iterator[Finding]:
    source = Source(step.function)
    yield from _declaration(step, source)
    yield from _creation(step, source)
    yield from _retries(step, source)
    yield from _batch(step, source)


def of_hook(hook: Hook) -> Iterator[Finding]:
    source = Source(hook.flow.function)
    for what, keep in (
        ("its own keep=", hook.policy.life.keep),
        (f"keep= of {hook.flow.name}", hook.flow.policy.life.keep),
    ):
        if keep is not None and keep < hook.source.horizon:
            found = (
                f"{what} is {keep / 3600:g} h, and {hook.source.name} tries again for {hook.source.horizon / 3600:g} h"
            )
            yield _found("short-keep", source, source.first_line, f"webhook {hook.name}", found)


def steps_in(flow: Flow) -> list[tuple[ast.Call, Step]]:
    """The steps that a flow's body calls, in the order in which they are written."""
    source = Source(flow.function)
    return [(call, step) for call in source.calls() if (step := _step_of(source, call)) is not None]


# -- the flow ------------------------------------------------------------------------------------


def _key(flow: Flow, source: Source) -> Iterator[Finding]:
    maker = flow.asking.maker
    if maker.function is None:
        if not maker.fields:
            yield _found("unit-of-work", source, source.first_line, flow.name, "the key names no argument")
        for field in maker.fields:
            sign = name_sign(field)
            if sign and field.path not in flow.asking.stable:
                yield _found("unstable-key", source, source.first_line, flow.name, f"{field.path} {sign}")
        return
    made = Source(maker.function)
    for call in made.calls():
        path = made.path(call.func)
        if changes_each_time(path):
            yield _found("unstable-key", made, made.line(call), flow.name, f"the key is made with {path}()")


def _body(flow: Flow, source: Source) -> Iterator[Finding]:
    for call in source.calls():
        path = source.path(call.func)
        if reaches_outside(path):
            yield _found("effect-outside-step", source, source.line(call), flow.name, f"{path}() in the flow's body")
        if changes_each_time(path):
            yield _found("changing-body", source, source.line(call), flow.name, f"{path}() in the flow's body")
    for loop in source.nodes(ast.For, ast.AsyncFor, ast.comprehension):
        over = loop.iter  # type: ignore[attr-defined]
        if isinstance(over, ast.Set | ast.SetComp) or _is_call_of(over, ("set", "frozenset")):
            yield _found("changing-body", source, source.line(over), flow.name, "iterates over a set")


def _order(flow: Flow, source: Source) -> Iterator[Finding]:
    called = steps_in(flow)
    for number, (call, step) in enumerate(called):
        later = [other for _, other in called[number + 1 :] if other is not step]
        if not later or step.plan.repeat.kind == "safe" or step.undo is not None:
            continue
        line = source.line(call)
        if step.plan.repeat.kind == "never" and any(other.plan.repeat.kind != "never" for other in later):
            found = f"{step.name} cannot be repeated, and {later[0].name} comes after it"
            yield _found("dangerous-before-safe", source, line, flow.name, found)
        elif step.transaction is None:
            yield _found("missing-undo", source, line, flow.name, f"{step.name} has no undo=, and is not the last step")


def _loops(flow: Flow, source: Source) -> Iterator[Finding]:
    for loop in source.nodes(*LOOPS, *COMPREHENSIONS):
        for call in source.calls(loop):
            step = _step_of(source, call)
            if step is not None and not step.has_own_id:
                found = f"{step.name} is called in a loop and has no id="
                yield _found("loop-without-id", source, source.line(call), flow.name, found)


# -- the step ------------------------------------------------------------------------------------


def _declaration(step: Step, source: Source) -> Iterator[Finding]:
    """The decorator is looked at: "never" by silence is an oversight, in writing it is a decision."""
    for decorator in source.tree.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        named = isinstance(call, ast.Attribute) and call.attr == "step"
        if named and not (isinstance(decorator, ast.Call) and literal(decorator, "repeat") is not None):
            yield _found("undeclared-step", source, source.line(decorator), step.name, "no repeat= is given")


def _creation(step: Step, source: Source) -> Iterator[Finding]:
    if step.plan.repeat.kind != "safe":
        return
    for call in source.calls():
        text = next(
            (arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)), None
        )
        path = source.path(call.func) or _dotted(call.func)
        if creates(path, text):
            yield _found(
                "create-not-upsert", source, source.line(call), step.name, f'{path}() in a step that is "safe"'
            )


def _retries(step: Step, source: Source) -> Iterator[Finding]:
    for loop in source.nodes(ast.While):
        assert isinstance(loop, ast.While)
        forever = isinstance(loop.test, ast.Constant) and bool(loop.test.value)
        if forever and any(isinstance(node, ast.Try) for node in ast.walk(loop)):
            yield _found(
                "unbounded-retry", source, source.line(loop), step.name, "a loop without an end that catches errors"
            )


def _batch(step: Step, source: Source) -> Iterator[Finding]:
    if step.plan.repeat.kind == "safe" or step.transaction is not None:
        return
    for loop in source.nodes(ast.For, ast.AsyncFor):
        called = next((path for call in source.calls(loop) if reaches_outside(path := source.path(call.func))), "")
        if called:
            yield _found(
                "batch-with-one-marker", source, source.line(loop), step.name, f"{called}() once per item of a loop"
            )


# -- reading -------------------------------------------------------------------------------------


def _step_of(source: Source, call: ast.Call) -> Step | None:
    found = getattr(source.meaning(call.func), "step", None)
    return found if isinstance(found, Step) else None


def _is_call_of(node: ast.AST, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _dotted(node: ast.AST) -> str:
    """As it is written, where nobody knows what it stands for."""
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def _found(rule: str, source: Source, line: int, where: str, found: str) -> Finding:
    known = RULES[rule]
    return Finding(rule, source.file, line, where, found, known.why, known.instead)
