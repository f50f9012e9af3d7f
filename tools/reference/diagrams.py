"""The states of a claim, a run, a step, a message and a finding, as docs/states.md shows them."""

from __future__ import annotations

from collections.abc import Mapping

from .drawing import Arrow, Diagram, Loop

__all__ = ["DIAGRAMS"]

CLAIM = Diagram(
    "States of a claim",
    (1000, 520),
    {
        "held": (190, 250),
        "review": (500, 60),
        "done": (810, 250),
        "failed": (500, 440),
        "(start)": (190, 60),
        "(end)": (810, 440),
        "(end 2)": (190, 440),
    },
    (
        Arrow("(start)", "held", "take"),
        Arrow("held", "(end 2)", "release", at=0.6),
        Arrow("held", "done", "complete;\na lapsed one is settled: it happened", at=0.33),
        Arrow("held", "review", 'an ambiguous error;\ntake after a lapse, repeat="never"'),
        Arrow("held", "failed", "fail; a lapsed one is settled:\nit did not, or abandon", shift=-14, at=0.3),
        Arrow("failed", "held", "take, if retryable;\nan explicit retry", shift=-14, at=0.3),
        Arrow("review", "done", "settle: it happened"),
        Arrow("review", "failed", "settle: it did not,\nor abandon", at=0.34),
        Arrow("failed", "done", "settle: it happened after all"),
        Arrow("done", "(end)", "forgotten,\nafter keep"),
        Arrow("failed", "(end)", "forgotten, after keep_failed"),
    ),
    (
        Loop("held", "renew:\nsame fence", side=-1, level=-1),
        Loop("held", 'take after a lapse,\nrepeat="safe":\nnew fence', side=-1),
        Loop("done", "trim, after\nkeep_result"),
    ),
)

RUN = Diagram(
    "States of a run",
    (1000, 560),
    {
        "queued": (150, 270),
        "held": (520, 270),
        "waiting": (520, 60),
        "done": (890, 270),
        "failed": (150, 490),
        "review": (520, 490),
        "(start)": (150, 60),
        "(start 2)": (800, 100),
    },
    (
        Arrow("(start)", "queued", "started,\nleft to a worker"),
        Arrow("(start 2)", "held", "called here"),
        Arrow("queued", "held", "taken by a worker, or called here", shift=-12),
        Arrow("held", "queued", "given back: drained, interrupted", shift=-12),
        Arrow("held", "waiting", "sleep, callback,\napproval, later retry", shift=-16, at=0.36),
        Arrow("waiting", "held", "its time has come,\nor something arrived", shift=-16, at=0.36),
        Arrow("waiting", "queued", "cancelled,\nto be undone"),
        Arrow("held", "done", "the function returned"),
        Arrow("held", "review", "an outcome is unknown,\nor the flow changed"),
        Arrow("held", "failed", "it raised; what was\ndone is undone", at=0.28),
        Arrow("queued", "failed", "cancelled before\nit began", shift=16, at=0.64),
        Arrow("failed", "queued", "runs retry", shift=16, at=0.64),
        Arrow("review", "queued", "settled: it happened,\nit did not, or undo", at=0.26),
        Arrow("review", "failed", "settled: abandon"),
    ),
    (Loop("held", "taken over after a lapse:\nfinished steps are recorded"),),
)

STEP = Diagram(
    "States of a step",
    (1000, 500),
    {
        "started": (150, 240),
        "unknown": (500, 60),
        "done": (850, 240),
        "retry": (500, 430),
        "failed": (850, 430),
        "(start)": (150, 60),
        "(start 2)": (850, 60),
    },
    (
        Arrow("(start)", "started", "check and never;\nany step after a crash"),
        Arrow("(start 2)", "done", "safe, keyed and\ntransactional steps"),
        Arrow("started", "done", "it returned, or was found at its destination", at=0.3),
        Arrow("started", "unknown", "its outcome\nis unknown"),
        Arrow("started", "retry", "it raised", shift=-12, at=0.35),
        Arrow("retry", "started", "tried again", shift=-12, at=0.35),
        Arrow("unknown", "done", "settled: it happened"),
        Arrow("unknown", "retry", "settled: it did not", at=0.3),
        Arrow("retry", "done", "it returned"),
        Arrow("retry", "failed", "no attempts are left", shift=-12),
        Arrow("failed", "retry", "runs retry", shift=-12),
    ),
)

FINDING = Diagram(
    "States of a finding",
    (1000, 500),
    {
        "open": (190, 240),
        "acknowledged": (530, 60),
        "suppressed": (530, 240),
        "acted": (530, 430),
        "resolved": (860, 240),
        "(start)": (190, 60),
        "(end)": (860, 430),
    },
    (
        Arrow("(start)", "open", "a second look\nconfirms it"),
        Arrow("open", "acknowledged", "a person has\nseen to it", at=0.45),
        Arrow("open", "suppressed", "suppressed", shift=-12),
        Arrow("suppressed", "open", "its time is over,\nand it is still seen", shift=-12),
        Arrow("open", "acted", "undone, or\na run started", shift=-14, at=0.4),
        Arrow("acted", "open", "still seen\nlater", shift=-14, at=0.4),
        Arrow("acknowledged", "resolved", "a whole run\nno longer sees it"),
        Arrow("suppressed", "resolved", "no longer seen"),
        Arrow("acted", "resolved", "no longer seen"),
        Arrow("resolved", "(end)", "forgotten,\nafter 90 days"),
    ),
    (Loop("open", "seen again:\ncounted", side=-1), Loop("resolved", "seen again:\nreopened, open")),
)

MESSAGE = Diagram(
    "States of a message",
    (1000, 460),
    {
        "pending": (280, 220),
        "publishing": (560, 60),
        "sent": (860, 220),
        "parked": (560, 390),
        "dropped": (860, 390),
        "(start)": (280, 60),
    },
    (
        Arrow("(start)", "pending", "sent by a flow\nor a transaction"),
        Arrow("pending", "sent", "published and confirmed", at=0.4),
        Arrow("pending", "publishing", 'on_unknown="review"', shift=-10, at=0.4),
        Arrow("publishing", "sent", "confirmed"),
        Arrow("publishing", "parked", "no answer", at=0.3),
        Arrow("pending", "parked", "refused for good,\nor too often", shift=-12, at=0.35),
        Arrow("parked", "pending", "resend", shift=-12, at=0.35),
        Arrow("parked", "dropped", "drop"),
    ),
    (Loop("pending", "refused, or no answer:\nlater, with the same key", side=-1),),
)

DIAGRAMS: Mapping[str, Diagram] = {
    "claim": CLAIM,
    "run": RUN,
    "step": STEP,
    "message": MESSAGE,
    "finding": FINDING,
}
