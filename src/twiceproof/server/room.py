"""Room for bodies: all that are being read or worked on have so many bytes together, and then large ones must wait."""

from __future__ import annotations

from ..doors.reply import problem, retry_after
from .call import Refused

__all__ = ["SMALL", "Room", "Share"]

SMALL = 64 * 1024  # a body up to this size is always let in: who sends large ones slowly must not keep it out


class Room:
    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0


class Share:
    """What one request takes of it."""

    __slots__ = ("_room", "_size", "_taken")

    def __init__(self, room: Room) -> None:
        self._room = room
        self._size = 0
        self._taken = 0

    def grow(self, size: int) -> None:
        """By so many bytes more, before they are kept."""
        self._size += size
        if self._size <= SMALL:
            return
        more = self._size - self._taken
        if self._room.taken + more > self._room.most:
            raise Refused(
                problem(
                    503, "busy", "This server holds as many bytes as it has room for.",
                    next_move="Send the same request again; it is safe.", headers=[retry_after(1)],
                )
            )  # fmt: skip
        self._room.taken += more
        self._taken = self._size

    def end(self) -> None:
        self._room.taken -= self._taken
        self._taken = 0
