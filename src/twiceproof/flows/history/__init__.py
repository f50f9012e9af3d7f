"""What happened, and what a person does about it: lists, reviews, retries, forks."""
