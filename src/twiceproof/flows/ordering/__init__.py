"""Events that arrive out of order: of one object, only newer versions are applied."""
