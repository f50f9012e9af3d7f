"""Guarded routes and their rules, and the keyed requests that match them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal, get_args
from uuid import UUID

from msgspec import Struct

from ..claims.claim import validate_name
from ..claims.held_claim import ClaimScope
from ..claims.policy import DEFAULT_KEEP, DEFAULT_LEASE, Duration, Repeat
from ..claims.states import Lifetime
from ..errors import Misuse
from ..keys.duration import lifetime, seconds

__all__ = [
    "ANYWHERE",
    "BY_HEADER",
    "FORM",
    "GUARDED",
    "MOST_ANSWER",
    "USED_HEADERS",
    "Busy",
    "Caller",
    "HeldRequest",
    "Keeps",
    "KeyedRequest",
    "Route",
    "RouteRule",
    "Rules",
    "Source",
    "marker_headers",
]


Keeps = Literal["2xx+4xx", "2xx", "all", "resume"]
Busy = Literal[409, 503, 202, "wait"]

GUARDED = ("POST", "PATCH")
UNSAFE = ("POST", "PATCH", "PUT", "DELETE")
ANYWHERE = "/{anywhere:path}"
MEGABYTE = 1024 * 1024
MOST_ANSWER = 5 * MEGABYTE  # as JSON, a third larger, it still matches beside its claim


class RoutePath(Struct, frozen=True):
    path: str = ANYWHERE


class Route(RoutePath, frozen=True, kw_only=True):
    """`Route("/payments", required=True)`. `{order}` in a path is one segment, `{rest:path}` is any number of them."""

    methods: Collection[str] = GUARDED
    name: str = ""  # the operation of its claims; "": derived from method and path
    required: bool = False  # a request without a key is refused
    keeps: Keeps = "2xx+4xx"  # which responses are final
    repeat: Repeat = "never"  # after an unknown outcome: "never" goes to review, "safe" runs again
    clean: Collection[int] = ()  # 5xx statuses that mean that nothing was done
    busy: Busy | None = None  # the response to a concurrent duplicate; None: 409, and forms wait
    wait: Duration = 30.0  # how long "wait" waits
    lease: Duration = DEFAULT_LEASE
    keep: Duration = DEFAULT_KEEP
    keep_answer: Duration | None = None
    ignore: Collection[str] = ()  # fields of a JSON body that may differ between retries
    form: str = ""  # the hidden field that holds a form token
    largest_body: int = 8 * MEGABYTE
    largest_answer: int = MOST_ANSWER

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise Misuse(f'The route {self.path!r} is not a path; write it like "/orders/{{order}}/pay".')
        if self.name:
            validate_name("route", self.name)
        self._check_methods()
        self._check_choices()
        self._check_sizes()

    def _check_methods(self) -> None:
        if isinstance(self.methods, str):
            raise Misuse(f'methods={self.methods!r} is a string, not a list; write methods=("{self.methods}",).')
        wrong = sorted({method.upper() for method in self.methods} - set(UNSAFE))
        if wrong or not self.methods:
            raise Misuse(
                f"{self.path} guards {', '.join(wrong) or 'no method'}; choose from {', '.join(UNSAFE)}: "
                "the others are not supposed to change anything."
            )

    def _check_choices(self) -> None:
        for name, value, legal in (
            ("keeps", self.keeps, get_args(Keeps)),
            ("repeat", self.repeat, get_args(Repeat)),
            ("busy", self.busy, (None, *get_args(Busy))),
        ):
            if value not in legal:
                raise Misuse(f"{name}={value!r} is not known; use one of {', '.join(map(repr, legal))}.")
        if any(not 500 <= status <= 599 for status in self.clean):
            raise Misuse("clean= takes statuses from 500 to 599; leave the others out.")

    def _check_sizes(self) -> None:
        if not 0 < self.largest_answer <= MOST_ANSWER:
            raise Misuse(f"largest_answer={self.largest_answer} is out of range; give 1 to {MOST_ANSWER} bytes.")
        if self.largest_body <= 0:
            raise Misuse(f"largest_body={self.largest_body} refuses every body; give a number of bytes.")


PARAMETER = re.compile(r"[{<]([^{}<>]*)[}>]")  # {order}, {rest:path}, <order>, <path:rest>
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
LONGEST_NAME = 128


class RouteRule:
    """A compiled route. With `is_wildcard` it matches many addresses, each with keys of its own."""

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
        self.is_wildcard = any(_matches_segments(place) for place in PARAMETER.findall(route.path))
        self._match = _pattern(route.path).fullmatch
        self._match_plain = _pattern(plain(route.path)).fullmatch
        self._operations = {method: _operation(route, method) for method in self.methods}

    def operation(self, method: str) -> str:
        return self._operations[method]

    def matches(self, path: str) -> bool:
        return path == self.path or self._match(path) is not None

    def matches_plain(self, path: str) -> bool:
        """Whether it matches apart from slashes. `path` must be normalised."""
        return self._match_plain(path) is not None

    def scope_path(self, path: str) -> str:
        """The path that a key is bound to. A different spelling has its own keys, because it may be a redirect."""
        return path if self.is_wildcard or not self.matches(path) else self.path


class Rules:
    """Finds the rule of a request: the first that matches."""

    def __init__(self, routes: Iterable[Route | str] | None) -> None:
        if isinstance(routes, str | Route):
            raise Misuse(f"routes={routes!r} is a single route, not a list; write routes=[…] around it.")
        given = [Route()] if routes is None else [_route(one) for one in routes]
        if not given:
            raise Misuse("routes=[] guards nothing; name the routes, or leave it out to guard all.")
        self.all = [RouteRule(route) for route in given]
        self._methods = frozenset[str]().union(*(rule.methods for rule in self.all))

    def find(self, method: str, path: str) -> RouteRule | None:
        """Match the exact path first, then regardless of slashes: some frameworks serve `/pay/` as `/pay`, which would
        otherwise run unguarded.
        """
        if method not in self._methods:
            return None
        for rule in self.all:
            if method in rule.methods and rule.matches(path):
                return rule
        bare = plain(path)
        return next((rule for rule in self.all if method in rule.methods and rule.matches_plain(bare)), None)


def plain(path: str) -> str:
    """Remove trailing and doubled slashes."""
    return "/" + "/".join(filter(None, path.split("/")))


def _route(given: Route | str) -> Route:
    return Route(path=given) if isinstance(given, str) else given


def _life(route: Route) -> Lifetime:
    kept = lifetime(route.keep, name="keep")
    shown = None if route.keep_answer is None else lifetime(route.keep_answer, name="keep_answer")
    return Lifetime(kept, shown, kept)


def _matches_segments(place: str) -> bool:
    return "path" in place.split(":")[:-1] + place.split(":")[1:]


def _pattern(path: str) -> re.Pattern[str]:
    pieces, at = [], 0
    for found in PARAMETER.finditer(path):
        pieces += [re.escape(path[at : found.start()]), ".*" if _matches_segments(found[1]) else "[^/]+"]
        at = found.end()
    return re.compile("".join([*pieces, re.escape(path[at:])]), re.DOTALL)


def _operation(route: Route, method: str) -> str:
    """Return a name that is easy to type. Routes are told apart by the claim's key."""
    if route.name:
        return route.name
    if route.path == ANYWHERE:
        return "http"
    return f"{method}.{NOT_IN_NAMES.sub('.', route.path).strip('.')}".rstrip(".")[:LONGEST_NAME]


Source = Literal["header", "form"]
Caller = str | int | UUID | None  # by name or number; None: not known
BY_HEADER: Source = "header"
FORM: Source = "form"

# The headers that the guard reads.
USED_HEADERS = frozenset({"idempotency-key", "content-type", "authorization", "accept"})

REPLAYED, FIRST = ("idempotent-replayed", "true"), ("idempotent-replayed", "false")
EXPOSED = ("access-control-expose-headers", "Idempotency-Key, Idempotent-Replayed")


class KeyedRequest(Struct, frozen=True, gc=False):
    rule: RouteRule
    method: str
    path: str
    query: str
    principal: str
    source: Source
    key: str  # "": to be read from the form
    echo: str = ""  # the header as it was sent
    content_type: str = ""
    page: bool = False  # reply with a page, for a browser


def marker_headers(request: KeyedRequest, *, replayed: bool) -> list[tuple[str, str]]:
    """The headers of every response to a guarded request, exposed to scripts of other origins."""
    marked = [REPLAYED if replayed else FIRST, EXPOSED]
    if request.echo:
        marked.append(("idempotency-key", request.echo))
    return marked


class HeldRequest:
    """A request whose claim is held while the app runs."""

    __slots__ = ("begun", "recorded", "request", "scope")

    def __init__(self, request: KeyedRequest, scope: ClaimScope) -> None:
        self.request = request
        self.scope = scope
        self.begun = True  # False: the app reported that the request was refused before its work began
        self.recorded = False  # whether the outcome was recorded, or recording was given up

    @property
    def key(self) -> str:
        """The key that the client sent. A handler may pass it on."""
        return self.request.key
