"""`python -m twiceproof`."""

from .cli.main import main

main()
