"""The demo: a shop, an accounting service and a mail server as processes, and two programs that serve them."""
