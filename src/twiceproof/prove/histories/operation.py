"""One operation of a history: who asked what about which key, when, and what came back."""

from __future__ import annotations

from msgspec import Struct, structs

from .act import Act, Look
from .answer import Answer, Ended, Held, InReview, Renewed, Settled

__all__ = ["Operation"]

CHANGING = (Held, Renewed, Ended, InReview, Settled)  # a take that says "in review" may have parked the claim


class Operation(Struct, frozen=True, gc=False):
    """From `invoked` to `returned`, in ticks of one clock that all clients share.

    Without an answer it may have happened at any time after its invocation, or never; if `returned` is given, at
    any time before that, or never.
    """

    client: str
    key: str
    act: Act
    answer: Answer | None
    invoked: int
    returned: int | None = None

    @property
    def kind(self) -> str:
        return str(self.act.__struct_config__.tag)

    @property
    def drawn(self) -> int:
        """The fence that the answer tells of; 0: none, or nobody knows."""
        return self.answer.fence if isinstance(self.answer, Held | Ended) else 0

    @property
    def changes(self) -> bool:
        """Whether it may have changed the claim. What only looked can be left out of a history."""
        return not isinstance(self.act, Look) and (self.answer is None or isinstance(self.answer, CHANGING))

    def cut_at(self, tick: int) -> Operation | None:
        """What was known of it at that moment. None: it had not begun."""
        if self.invoked > tick:
            return None
        if self.returned is None or self.returned <= tick:
            return self
        return structs.replace(self, answer=None, returned=self.returned if self.answer is None else None)

    def __str__(self) -> str:
        said = "no answer" if self.answer is None else _words(self.answer)
        return f"{self.client} {_words(self.act)} → {said}"


def _words(what: Act | Answer) -> str:
    fields = ((name, getattr(what, name)) for name in what.__struct_fields__)
    told = (f"{name}={value}" for name, value in fields if value not in ("", None))
    return " ".join([str(what.__struct_config__.tag), *told])
