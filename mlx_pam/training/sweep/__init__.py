"""A sweep: a queue of runs in processes of their own, and the search for their learning rates."""
