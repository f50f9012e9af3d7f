"""Who may call what: one table. What is not in it is refused, and a route that is missing keeps the server down."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import Misuse
from .principal import Principal, Scope
from .route import Route

__all__ = ["POLICY", "allows", "require_policy"]

POLICY: dict[tuple[str, str], Scope] = {
    ("GET", "/healthz"): Scope.OPEN,
    ("GET", "/readyz"): Scope.OPEN,
    ("GET", "/openapi.json"): Scope.OPEN,
    ("GET", "/metrics"): Scope.OPERATOR,
    ("POST", "/hooks/{name}"): Scope.PROVEN,
    ("OPTIONS", "/hooks/{name}"): Scope.PROVEN,
    ("PUT", "/v1/claims/{operation}/{key}"): Scope.INGEST,
    ("GET", "/v1/claims/{operation}/{key}"): Scope.READ,
    ("POST", "/v1/claims/{operation}/{key}/complete"): Scope.INGEST,
    ("POST", "/v1/claims/{operation}/{key}/fail"): Scope.INGEST,
    ("POST", "/v1/claims/{operation}/{key}/renew"): Scope.INGEST,
    ("POST", "/v1/runs/{name}"): Scope.RUN,
    ("GET", "/v1/runs"): Scope.READ,
    ("GET", "/v1/runs/{name}"): Scope.READ,
    ("POST", "/v1/runs/{name}/cancel"): Scope.RUN,
    ("POST", "/v1/runs/{name}/retry"): Scope.RUN,
    ("POST", "/v1/callbacks/{token}"): Scope.PROVEN,
    ("GET", "/v1/approvals"): Scope.READ,
    ("GET", "/v1/approvals/{id}"): Scope.APPROVE,
    ("POST", "/v1/approvals/{id}"): Scope.APPROVE,
    ("GET", "/v1/approvals/link/{token}"): Scope.PROVEN,
    ("POST", "/v1/approvals/link/{token}"): Scope.PROVEN,
    ("POST", "/v1/reviews/{name}"): Scope.APPROVE,
}


def allows(scope: Scope, principal: Principal, own_tenant: str) -> bool:
    """Whether this caller may. A token that is shown where none is needed must still be good for `ingest` there."""
    match scope:
        case Scope.OPEN:
            return True
        case Scope.PROVEN:
            return not principal.name or principal.may(Scope.INGEST)
        case Scope.OPERATOR:
            return principal.tenant == own_tenant and principal.may(Scope.READ)
        case _:
            return principal.may(scope)


def require_policy(routes: Iterable[Route]) -> None:
    missing = [f"{route.method} {route.path}" for route in routes if (route.method, route.path) not in POLICY]
    if missing:
        raise Misuse(f"No rule says who may call {', '.join(missing)}; add it to twiceproof.server.policy.POLICY.")
