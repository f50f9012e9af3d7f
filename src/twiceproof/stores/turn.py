"""A task's turn on its event loop: who is answered on the spot again and again must let others run now and then."""

from __future__ import annotations

import threading

__all__ = ["MOST", "give_way", "is_over"]

MOST = 64  # answers on the spot, of a few microseconds each; giving way costs about as much as one


class _Answers(threading.local):
    """On this thread, and so on this event loop, since others had their turn."""

    given = 0


_answers = _Answers()


def is_over() -> bool:
    """Counts an answer. True: it was one too many."""
    _answers.given += 1
    if _answers.given < MOST:
        return False
    _answers.given = 0
    return True


async def give_way() -> None:
    """A cancellation may arrive here: it finds the answer given, as it would on a store that takes a while."""
    from asyncio import sleep

    await sleep(0)
