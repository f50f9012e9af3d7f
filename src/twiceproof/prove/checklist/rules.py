"""The rules of `twiceproof check`: what each looks for, why, and what to write instead."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["RULES", "ChecklistFinding", "ChecklistRule"]


class ChecklistRule(Struct, frozen=True):
    """One rule. `why` is one sentence; `instead` is what to write, with NAME for the provider that was found."""

    name: str
    why: str
    instead: str


class ChecklistFinding(Struct, frozen=True):
    """One violation of a rule. `line` is 0 where the source cannot be read."""

    rule: str
    file: str
    line: int
    where: str  # the flow or step
    found: str
    why: str
    instead: str


RULES = {
    rule.name: rule
    for rule in (
        ChecklistRule(
            "unit-of-work",
            "Every call has the same key, so the second order is taken for a repeat of the first.",
            'Put what tells two events apart into the key: key="shop:order:{order[id]}".',
        ),
        ChecklistRule(
            "unstable-key",
            "A retry makes another key, and the work is done twice.",
            "Use an id of the event itself: its order, message or event id; in a step, app.effect_key().",
        ),
        ChecklistRule(
            "undeclared-step",
            "Undeclared, it is never repeated, so every time-out and every crash in it waits for a person.",
            'Say how it may be repeated: @app.step(repeat="safe"), "keyed", check(probe), or "never" on purpose.',
        ),
        ChecklistRule(
            "effect-outside-step",
            "A replay runs the flow's body again, and this call with it.",
            "Move it into a function under @app.step(repeat=…), or describe it under @app.effect.",
        ),
        ChecklistRule(
            "effect-not-performed",
            "A block describes an effect; by itself nothing is sent or written.",
            "Return it from a function under @app.effect and call that, or write app.effects.http.put(…).",
        ),
        ChecklistRule(
            "own-threads",
            "On a thread of your own a step does not know its run: it is not recorded, and a replay does it again.",
            "Let app.gather or app.each call it; in an `async def` flow, asyncio.to_thread takes the run along.",
        ),
        ChecklistRule(
            "forgotten-await",
            "A call that is never awaited does nothing: the run ends without it, and goes to review.",
            "Write await before it, or hand it to app.gather.",
        ),
        ChecklistRule(
            "own-tasks",
            "asyncio swallows or wraps what a step or wait stops the run with, so it goes on with a wrong answer.",
            "Use app.gather: await app.gather(pay(order), ship(order)).",
        ),
        ChecklistRule(
            "async-in-def-flow",
            "A `def` flow cannot await, so the step is called and never begins.",
            "Make the flow an `async def` and await the step, or make the step a `def`.",
        ),
        ChecklistRule(
            "keyed-without-key",
            "Declared keyed, it is repeated after a time-out; without our key the provider takes that for a new order.",
            "Send app.effect_key() along, as the provider wants it, or declare check(probe) or never.",
        ),
        ChecklistRule(
            "provider-without-key",
            "The provider takes an idempotency key and gets none, so a request that is sent again is done again.",
            'Name it: http.post(url, …, provider="NAME"); with another client send '
            'provider("NAME").headers(app.effect_key()), and declare repeat=provider("NAME").',
        ),
        ChecklistRule(
            "window-too-long",
            "After its window the provider has forgotten the key, and takes a repeat for a new order.",
            'Let its row decide: repeat=provider("NAME"), or http.post(…, provider="NAME") without repeat=.',
        ),
        ChecklistRule(
            "mail-as-safe",
            "Declared safe, it may run twice, and the recipient gets two e-mails.",
            'Declare it repeat="never", or check(probe) with a look into the folder of sent mail.',
        ),
        ChecklistRule(
            "dangerous-before-safe",
            "If a later step fails, the effect has already happened and cannot be undone.",
            "Put it last, after everything that may still fail, or give it an undo.",
        ),
        ChecklistRule(
            "missing-undo",
            "When a later step fails for good, what this one did stays done, and no one notices.",
            "Name its compensation: undo=cancel_it, in @app.step, @app.effect or @app.transaction.",
        ),
        ChecklistRule(
            "short-keep",
            "The sender still repeats the event when its key is already forgotten, and the work is done twice.",
            "Give keep= at least as long as the sender tries again.",
        ),
        ChecklistRule(
            "create-not-upsert",
            "Declared safe, it may run twice, and the second time it creates a second record.",
            "Write an upsert (INSERT … ON CONFLICT, PUT by your own id), or declare it keyed or check(probe).",
        ),
        ChecklistRule(
            "published-by-hand",
            "Declared safe, it may run twice, and no receiver can tell the second message from a new one.",
            "Write app.send(topic, body), which the relay publishes under one key; or send app.effect_key() along.",
        ),
        ChecklistRule(
            "unbounded-retry",
            "A step that never succeeds is retried for ever, without a review.",
            'Let @app.step(retry=Retry(attempts=8, within="2d")) do it, and take the loop out.',
        ),
        ChecklistRule(
            "batch-with-one-marker",
            "One entry stands for many effects: when the seventh fails, the first six are repeated or all are parked.",
            "Keep state per item: app.each(items, step, key=…), or a step per item with id=.",
        ),
        ChecklistRule(
            "loop-without-id",
            "Calls are told apart by their order, and an item more or less makes each the next one's answer.",
            'Give the step an id of the item: @app.step(id="{line[sku]}").',
        ),
        ChecklistRule(
            "unkept-result",
            "What is read whole has any size; over 8 MB it is not kept, and the run waits for a person after the step.",
            'Say where large values go: App(resources="dir://…"); or return a path, an id or a digest.',
        ),
        ChecklistRule(
            "changing-body",
            "A replay sees another value and goes another way than the first time.",
            "Use app.now(), app.uuid() or app.random(), which are the same in a replay; sort sets before iterating.",
        ),
    )
}
