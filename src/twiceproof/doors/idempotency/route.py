"""A route: which requests are guarded, and how. The words a user writes, checked when the middleware is made."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from msgspec import Struct

from ...claims.claim import validate_name
from ...claims.policy import DEFAULT_KEEP, DEFAULT_LEASE, Duration, Repeat
from ...errors import Misuse

__all__ = ["ANYWHERE", "GUARDED", "MOST_ANSWER", "Busy", "Keeps", "Route"]

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
