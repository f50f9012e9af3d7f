"""The parts of a run, each of which can be asked for alone."""
