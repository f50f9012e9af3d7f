"""Which routes are guarded, and how; a keyed request."""

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
    "BY_REPEATABILITY",
    "FORM",
    "GUARDED",
    "LOOKED_AT",
    "MOST_ANSWER",
    "Busy",
    "HeldRequest",
    "Keeps",
    "KeyedRequest",
    "Route",
    "RouteRule",
    "Rules",
    "Source",
    "Who",
    "marks",
]


Keeps = Literal["2xx+4xx", "2xx", "all", "resume"]
Busy = Literal[409, 503, 202, "wait"]

GUARDED = ("POST", "PATCH")
UNSAFE = ("POST", "PATCH", "PUT", "DELETE")
ANYWHERE = "/{anywhere:path}"
MEGABYTE = 1024 * 1024
MOST_ANSWER = 5 * MEGABYTE  # in JSON, a third larger, it still fits beside its claim


class Place(Struct, frozen=True):
    path: str = ANYWHERE


class Route(Place, frozen=True, kw_only=True):
    """`Route("/payments", required=True)`. `{order}` in a path is one segment, `{rest:path}` is any number of them."""

    methods: Collection[str] = GUARDED
    name: str = ""  # the operation its claims are listed under; "": made from method and path
    required: bool = False  # a request without a key is refused
    keeps: Keeps = "2xx+4xx"  # which answers are final
    repeat: Repeat = "never"  # what an unknown outcome means: a person is asked, or it runs again
    clean: Collection[int] = ()  # 5xx by which this route says that nothing was done
    busy: Busy | None = None  # what a duplicate hears meanwhile; None: 409, and forms wait
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
        self._check_words()
        self._check_sizes()

    def _check_methods(self) -> None:
        if isinstance(self.methods, str):
            raise Misuse(f'methods={self.methods!r} is one text, not a list; write methods=("{self.methods}",).')
        wrong = sorted({method.upper() for method in self.methods} - set(UNSAFE))
        if wrong or not self.methods:
            raise Misuse(
                f"{self.path} guards {', '.join(wrong) or 'no method'}; choose from {', '.join(UNSAFE)}: "
                "the others change nothing."
            )

    def _check_words(self) -> None:
        for name, value, legal in (
            ("keeps", self.keeps, get_args(Keeps)),
            ("repeat", self.repeat, get_args(Repeat)),
            ("busy", self.busy, (None, *get_args(Busy))),
        ):
            if value not in legal:
                raise Misuse(f"{name}={value!r} means nothing here; say one of {', '.join(map(repr, legal))}.")
        if any(not 500 <= status <= 599 for status in self.clean):
            raise Misuse("clean= takes statuses from 500 to 599: what the others mean is not in doubt.")

    def _check_sizes(self) -> None:
        if not 0 < self.largest_answer <= MOST_ANSWER:
            raise Misuse(f"largest_answer={self.largest_answer} is not between 1 and {MOST_ANSWER} bytes.")
        if self.largest_body <= 0:
            raise Misuse(f"largest_body={self.largest_body} lets nothing in; give a number of bytes.")


PLACE = re.compile(r"[{<]([^{}<>]*)[}>]")  # {order}, {rest:path}, <order>, <path:rest>
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
LONGEST_NAME = 128


class RouteRule:
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
        self.all = [RouteRule(route) for route in given]
        self._methods = frozenset[str]().union(*(rule.methods for rule in self.all))

    def find(self, method: str, path: str) -> RouteRule | None:
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


Source = Literal["header", "repeatability", "form"]
Who = str | int | UUID | None  # a caller, by name or number; None: nobody knows
BY_HEADER: Source = "header"
BY_REPEATABILITY: Source = "repeatability"
FORM: Source = "form"

# The headers that a door looks at; the others are the app's business.
LOOKED_AT = frozenset(
    {
        "idempotency-key",
        "repeatability-request-id",
        "repeatability-first-sent",
        "content-type",
        "authorization",
        "accept",
    }
)

REPLAYED, FIRST = ("idempotent-replayed", "true"), ("idempotent-replayed", "false")
EXPOSED = ("access-control-expose-headers", "Idempotency-Key, Idempotent-Replayed")


class KeyedRequest(Struct, frozen=True, gc=False):
    rule: RouteRule
    method: str
    path: str
    query: str
    principal: str
    source: Source
    key: str  # "": still to be read from the form
    echo: str = ""  # the header as it was sent
    content_type: str = ""
    page: bool = False  # a person looks at the answer
    repeatability: bool = False


def marks(visit: KeyedRequest, *, replayed: bool) -> list[tuple[str, str]]:
    """What every answer to a guarded request says, also to scripts of another origin."""
    marked = [REPLAYED if replayed else FIRST, EXPOSED]
    if visit.echo:
        marked.append(("idempotency-key", visit.echo))
    if visit.repeatability:
        marked.append(("repeatability-result", "accepted"))
    return marked


class HeldRequest:
    __slots__ = ("begun", "left", "scope", "visit")

    def __init__(self, visit: KeyedRequest, scope: ClaimScope) -> None:
        self.visit = visit
        self.scope = scope
        self.begun = True  # False: the app says that the request was refused before its work began
        self.left = False  # whether the last word has been said

    @property
    def key(self) -> str:
        """What the client sent. A handler may pass it on."""
        return self.visit.key
