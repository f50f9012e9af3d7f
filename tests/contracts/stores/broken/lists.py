"""Scans by age and by prefix that lose, repeat or disorder, and cursors that lead elsewhere."""

import fnmatch
import unicodedata

from msgspec import structs

from tests.contracts.stores.broken.catalogue import breaks
from twiceproof.records import Page
from twiceproof.stores.memory import MemoryEngine


class OwnAge(MemoryEngine):
    """The model's scans, and an order by age that can be spoiled."""

    def place(self, record):
        return self._places[record.at]

    def begins(self, record, prefix):
        return record.at.space.startswith(prefix or "")

    def goes_on(self, page, rest):
        return str(self.place(page[-1]))

    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        if newest is None:
            return super().scan(kind, space, state, after, limit, newest, prefix)
        super().scan(kind, space, state, after, limit, newest)  # refuses what is no cursor
        with self._mutex:
            chosen = [one for one in self._matching(kind, space, state) if self.begins(one, prefix)]
            chosen.sort(key=self.place, reverse=newest)
        met = int(after) if after else None
        rest = [one for one in chosen if met is None or self.is_beyond(self.place(one), met, newest)]
        page = rest[:limit]
        cursors = [str(self.place(one)) for one in page]
        return Page(page, self.goes_on(page, rest) if len(rest) > limit else None, self._clock.now(), cursors)

    def is_beyond(self, place, met, newest):
        return place < met if newest else place > met


@breaks("lists")
class TheLatestComesLast(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        return super().scan(kind, space, state, after, limit, None if newest is None else not newest, prefix)


@breaks("lists")
class OldestFirstIsNewestFirst(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        return super().scan(kind, space, state, after, limit, None if newest is None else True, prefix)


@breaks("lists")
class AgeOfTheLastUpdate(OwnAge):
    """A record that is replaced moves to the front, and is met again or never."""

    def place(self, record):
        return int(record.version)


@breaks("lists")
class AgeOfTheFirstInsert(MemoryEngine):
    """One that was removed and came again is where it was."""

    def __init__(self, clock):
        super().__init__(clock)
        self._firsts = {}

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        if write.at in self._places:
            self._places[write.at] = self._firsts.setdefault(write.at, self._places[write.at])


@breaks("lists")
class AgeSkipsAtPageBorders(OwnAge):
    def goes_on(self, page, rest):
        return str(self.place(rest[len(page)]))


@breaks("lists")
class AgeRepeatsAtPageBorders(OwnAge):
    def is_beyond(self, place, met, newest):
        return place <= met if newest else place >= met


@breaks("lists")
class CursorsOneBehind(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        page = super().scan(kind, space, state, after, limit, newest, prefix)
        return structs.replace(page, cursors=[*page.cursors[1:], *page.cursors[-1:]])


@breaks("lists")
class CursorsLeadOnlyDown(OwnAge):
    def is_beyond(self, place, met, newest):
        return place < met


@breaks("lists")
class AgeIgnoresTheState(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        return super().scan(kind, space, None if newest is not None else state, after, limit, newest, prefix)


@breaks("lists")
class AgeTakesAnyCursor(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        sound = after is None or (after.isdecimal() and len(after) < 19) or newest is None
        return super().scan(kind, space, state, after if sound else None, limit, newest, prefix)


class OwnPrefix(MemoryEngine):
    def begins(self, space, prefix):
        return space.startswith(prefix)

    def _matching(self, kind, space, state):
        return [one for one in super()._matching(kind, space, state) if self._begins(one)]

    def _begins(self, record):
        return self._prefix is None or self.begins(record.at.space, self._prefix)

    _prefix = None

    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        super().scan(kind, space, state, after, limit, newest, prefix)  # refuses what is no cursor
        self._prefix = prefix
        try:
            page = super().scan(kind, space, state, after and "\0".join(_place(after)), limit, newest)
        finally:
            self._prefix = None
        return page if prefix is None else structs.replace(page, after=_as_place(page.after, kind), cursors=())


def _place(after):
    space, *_, key = after.removeprefix("at:").split("\0")
    return (space, key) if "\0" in after else (after,)


def _as_place(after, kind):
    return after and "at:" + "\0".join((_place(after)[0], kind, _place(after)[1]))


@breaks("lists")
class PrefixIgnored(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        return super().scan(kind, space, state, after, limit, newest, prefix and prefix[:1])


@breaks("lists")
class PrefixHasWildcards(MemoryEngine):
    """As LIKE does, where nobody escapes them."""

    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        page = super().scan(kind, space, state, after, limit, newest, prefix)
        if prefix is None or after is not None:
            return page
        pattern = prefix.translate({ord("%"): "*", ord("_"): "?"}) + "*"
        with self._mutex:
            records = [one for one in self._matching(kind, space, state) if fnmatch.fnmatch(one.at.space, pattern)]
        return page if len(records) == len(page.records) else structs.replace(page, records=records[:limit])


@breaks("lists")
class PrefixWithoutCase(OwnPrefix):
    def begins(self, space, prefix):
        return space.lower().startswith(prefix.lower())

    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        if prefix is None or after is not None:
            return MemoryEngine.scan(self, kind, space, state, after, limit, newest, prefix)
        return super().scan(kind, space, state, after, limit, newest, prefix)


@breaks("lists")
class PrefixInNormalForm(PrefixWithoutCase):
    def begins(self, space, prefix):
        return unicodedata.normalize("NFD", space).startswith(unicodedata.normalize("NFD", prefix))


@breaks("lists")
class PrefixIgnoresTheState(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        alone = prefix is not None and newest is None
        return super().scan(kind, space, None if alone else state, after, limit, newest, prefix)


@breaks("lists")
class PrefixOnlyTheFirstPage(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        page = super().scan(kind, space, state, after, limit, newest, prefix)
        return page if prefix is None else structs.replace(page, after=None)


@breaks("lists")
class PrefixTakesAnyCursor(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        sound = prefix is None or newest is not None or after is None or after.startswith("at:")
        return super().scan(kind, space, state, after if sound else None, limit, newest, prefix)


@breaks("lists")
class FamilyWithoutItsLastSlash(MemoryEngine):
    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        family = prefix if newest is None else prefix and prefix.rstrip("/")
        return super().scan(kind, space, state, after, limit, newest, family)


@breaks("lists")
class FamilyByTheStateOfTheInsert(MemoryEngine):
    """An index by family and state that a change of state does not mend."""

    def __init__(self, clock):
        super().__init__(clock)
        self._states = {}

    def _apply(self, write, nonce, now):
        super()._apply(write, nonce, now)
        if write.at in self._records:
            self._states.setdefault(write.at, self._records[write.at].state)

    def scan(self, kind, space, state, after, limit, newest=None, prefix=None):
        if newest is None or prefix is None or state is None:
            return super().scan(kind, space, state, after, limit, newest, prefix)
        page = super().scan(kind, space, None, after, limit, newest, prefix)
        records = [one for one in page.records if self._states[one.at] == state]
        return structs.replace(page, records=records, cursors=page.cursors[: len(records)])
