"""What starts runs by itself: schedules, and sources that are polled."""
