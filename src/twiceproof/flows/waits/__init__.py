"""What a run waits for: timers, callbacks, approvals, remote work."""
