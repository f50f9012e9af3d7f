"""A rule: a route as the door uses it, with its words read once."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...claims.states import Lifetime
from ...errors import Misuse
from ...keys.duration import lifetime, seconds
from .route import ANYWHERE, Busy, Route

__all__ = ["Rule", "Rules"]

PLACE = re.compile(r"[{<]([^{}<>]*)[}>]")  # {order}, {rest:path}, <order>, <path:rest>
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
LONGEST_NAME = 128


class Rule:
    """One route. `family`: it stands for many addresses, each of which is a route of its own."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.path = route.path
        self.methods = frozenset(method.upper() for method in route.methods)
        self.keeps = route.keeps
        self.reruns = route.repeat == "safe" or route.keeps == "resume"
        self.clean = frozenset(route.clean)
        self.busy: Busy = route.busy or ("wait" if route.form else 409)
        self.wait = seconds(route.wait, name="wait")
        self.lease = seconds(route.lease, name="lease")
        self.life = _life(route)
        self.ignore = (route.ignore,) if isinstance(route.ignore, str) else tuple(route.ignore)
        self.family = any(_is_family(place) for place in PLACE.findall(route.path))
        self._fit = _pattern(route.path).fullmatch
        self._fit_plain = _pattern(plain(route.path)).fullmatch
        self._operations = {method: _operation(route, method) for method in self.methods}

    def operation(self, method: str) -> str:
        return self._operations[method]

    def fits(self, path: str) -> bool:
        return path == self.path or self._fit(path) is not None

    def fits_plain(self, path: str) -> bool:
        """Apart from slashes. What is given has none too many."""
        return self._fit_plain(path) is not None

    def place(self, path: str) -> str:
        """The route that a key belongs to. An address spelled otherwise is one of its own: it may be a redirect."""
        return path if self.family or not self.fits(path) else self.path


class Rules:
    """Finds the rule of a request. The first that fits counts."""

    def __init__(self, routes: Iterable[Route | str] | None) -> None:
        if isinstance(routes, str | Route):
            raise Misuse(f"routes={routes!r} is one route, not a list; write routes=[…] around it.")
        given = [Route()] if routes is None else [_route(one) for one in routes]
        if not given:
            raise Misuse("routes=[] guards nothing; name the routes, or leave it out to guard all.")
        self.all = [Rule(route) for route in given]
        self._methods = frozenset[str]().union(*(rule.methods for rule in self.all))

    def find(self, method: str, path: str) -> Rule | None:
        """As it is written; or else apart from slashes, for which some frameworks do not care: `/pay/` would be paid,
        and nobody would have looked at its key.
        """
        if method not in self._methods:
            return None
        for rule in self.all:
            if method in rule.methods and rule.fits(path):
                return rule
        bare = plain(path)
        return next((rule for rule in self.all if method in rule.methods and rule.fits_plain(bare)), None)


def plain(path: str) -> str:
    """Without a slash at its end, and none twice."""
    return "/" + "/".join(filter(None, path.split("/")))


def _route(given: Route | str) -> Route:
    return Route(path=given) if isinstance(given, str) else given


def _life(route: Route) -> Lifetime:
    kept = lifetime(route.keep, name="keep")
    shown = None if route.keep_answer is None else lifetime(route.keep_answer, name="keep_answer")
    return Lifetime(kept, shown, kept)


def _is_family(place: str) -> bool:
    return "path" in place.split(":")[:-1] + place.split(":")[1:]


def _pattern(path: str) -> re.Pattern[str]:
    pieces, at = [], 0
    for found in PLACE.finditer(path):
        pieces += [re.escape(path[at : found.start()]), ".*" if _is_family(found[1]) else "[^/]+"]
        at = found.end()
    return re.compile("".join([*pieces, re.escape(path[at:])]), re.DOTALL)


def _operation(route: Route, method: str) -> str:
    """A name that people type. What tells routes apart is in the claim's key."""
    if route.name:
        return route.name
    if route.path == ANYWHERE:
        return "http"
    return f"{method}.{NOT_IN_NAMES.sub('.', route.path).strip('.')}".rstrip(".")[:LONGEST_NAME]
