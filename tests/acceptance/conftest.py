from tests.acceptance.places import place

__all__ = ["place"]
