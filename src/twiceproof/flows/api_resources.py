"""What an app offers for large values."""

from __future__ import annotations

from typing import Any

from ..drive import await_, block
from .context import attempt_var, session_var
from .parts import Parts
from .resource import Source, awaits, inline, keep

__all__ = ["ResourceApi"]


class ResourceApi:
    """The part of an app that is about resources."""

    parts: Parts

    def resource(self, data: Source, *, name: str = "", media_type: str = "") -> Any:
        """Put a large value away inside a step, and get a `Resource`: a reference that can be returned and passed on.

        `data` is bytes, text, a `Path` or an open file. It is kept as long as the run is. Awaited in an `async def`
        step. Outside a step the reference carries the value itself.
        """
        session, attempt = session_var.get(), attempt_var.get()
        if session is None or attempt is None:
            return inline(data, name, media_type)
        drive = await_ if awaits(session, attempt) else block
        return drive(keep(session, attempt, data, name, media_type))
