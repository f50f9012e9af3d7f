"""One file per fault, each with `TITLE` and `run(trial, finding)`."""
