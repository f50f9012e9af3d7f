"""What starts runs: schedules and polled sources."""
