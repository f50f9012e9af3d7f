"""Arrays: a sender that sends many events in one delivery may send them in any order."""

from __future__ import annotations

import json

from ...doors.source import Source
from .case import NOW, SourceCase
from .changes import with_body

__all__ = ["Arrays"]


class Arrays(SourceCase):
    def test_a_re_ordered_array_has_the_same_events(self, source: Source) -> None:
        forth, back = self._bodies(source)
        readings = [self.events(source, source.seal(body, self.secret, NOW)) for body in (forth, back)]
        said = [{event.id: event.payload for event in reading} for reading in readings]
        assert said[0] == said[1] or not forth.startswith(b"[")
        assert len(said[0]) == (3 if forth.startswith(b"[") else 1)

    def test_a_signed_array_cannot_be_re_ordered(self, source: Source) -> None:
        forth, back = self._bodies(source)
        sent = source.seal(forth, self.secret, NOW)
        assert bool(self.refusal(source, with_body(sent, back))) is source.signed

    def _bodies(self, source: Source) -> tuple[bytes, bytes]:
        """Three events and the same three from behind; where there is one event, it holds the array."""
        examples = [source.example({"number": number}) for number in (1, 2, 3)]
        if examples[0].startswith(b"["):
            events = [event for body in examples for event in json.loads(body)]
            return json.dumps(events).encode(), json.dumps(events[::-1]).encode()
        return source.example({"lines": [1, 2, 3]}), source.example({"lines": [3, 2, 1]})
