"""The network guard: a scenario's processes connect to worlds, and to nothing else."""
