"""The `Idempotency-Key` header, for any Python web app, and tokens for forms."""

from .asgi import IdempotencyKey
from .before import not_begun
from .form import FIELD, form_field, form_token
from .route import Route
from .wsgi import WsgiIdempotencyKey

__all__ = ["FIELD", "IdempotencyKey", "Route", "WsgiIdempotencyKey", "form_field", "form_token", "not_begun"]
