"""The claim service: claims for tools that speak HTTP and nothing else."""
