"""What a worker does, by hand."""

from __future__ import annotations

from twiceproof import App
from twiceproof.flows.workers.due_work import resume_run
from twiceproof.operations import block


def resume(app: App) -> int:
    """Everything that is due, once."""
    flow = next(iter(app.flows.values()))
    due = app.store.due("run", queues=flow.queues).block()
    for record in due.records:
        block(resume_run(flow, record))
    return len(due.records)
