"""History of runs, and what a person does about them: lists, reviews, retries, forks."""
