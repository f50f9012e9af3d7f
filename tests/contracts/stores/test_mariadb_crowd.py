"""Many keys, each called for fifty times by four processes: each is done once. F24 of `make prove` has a thousand."""

import asyncio
import contextlib
from collections import Counter

import pytest

from tests.acceptance.children import Child
from tests.acceptance.places import MariadbPlace
from twiceproof import InProgress

pytestmark = [pytest.mark.server, pytest.mark.slow]

KEYS, PROCESSES, CALLERS, AT_ONCE = 150, 4, (13, 13, 12, 12), 100


def test_many_keys_and_fifty_callers_each_are_one_effect_for_each_key(mariadb_url, tmp_path):
    place = MariadbPlace(mariadb_url, tmp_path)
    place.app().close()

    def body(callers):
        async def call_all():
            with place.app() as app:

                @app.once(key="{key}", lease=60.0)
                async def charge(key: int) -> str:
                    place.do(str(key))
                    return f"receipt {key}"

                room = asyncio.Semaphore(AT_ONCE)

                async def call(key):
                    async with room:
                        while True:
                            with contextlib.suppress(InProgress):
                                assert await charge(key) == f"receipt {key}"
                                return
                            await asyncio.sleep(0.01)

                await asyncio.gather(*(call(key) for key in range(KEYS) for _ in range(callers)))

        return lambda _: asyncio.run(call_all())

    children = [Child(body(callers)) for callers in CALLERS]
    assert [child.end() for child in children] == [0] * PROCESSES
    assert Counter(place.effects()) == Counter(str(key) for key in range(KEYS))
