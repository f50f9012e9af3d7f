"""OpenTelemetry spans, where it is installed and somebody set up a provider; nothing at all otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..observe.told import Told

__all__ = ["Traces", "find_traces"]


class Traces:
    """The API only: where spans go is the user's to set up."""

    def __init__(self, tracer: Any, propagate: Any, kind: Any) -> None:
        self._tracer = tracer
        self._propagate = propagate
        self._kind = kind

    @contextmanager
    def span(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> Iterator[Any]:
        """Named for the route, never for the address: that may hold a secret."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()
                   if name in (b"traceparent", b"tracestate", b"baggage")}  # fmt: skip
        attributes = {"http.request.method": method, "http.route": path}
        with self._tracer.start_as_current_span(
            f"{method} {path}", context=self._propagate.extract(carrier), kind=self._kind, attributes=attributes,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            yield span

    @staticmethod
    def end(span: Any, status: int, told: list[Told]) -> None:
        span.set_attribute("http.response.status_code", status)
        for one in told[:10]:
            span.add_event(one.outcome, {"door": one.door, "key": one.key, "run": one.run})


def find_traces() -> Traces | None:
    """None: nobody would see them, and they are not free."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Traces(trace.get_tracer("twiceproof"), propagate, trace.SpanKind.SERVER)
