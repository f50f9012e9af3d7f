"""The guard of a play: its processes connect to worlds, and to nothing else."""
