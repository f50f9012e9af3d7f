"""`Idempotency-Key` middleware for any ASGI or WSGI app, and form tokens."""

from .asgi import IdempotencyKey
from .forms import FIELD, form_field, form_token
from .responses import not_begun
from .routes import Route
from .wsgi import WsgiIdempotencyKey

__all__ = ["FIELD", "IdempotencyKey", "Route", "WsgiIdempotencyKey", "form_field", "form_token", "not_begun"]
