"""Search for the fastest layout of a model: candidates, their order, and when to stop."""
