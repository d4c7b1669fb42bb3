"""The scheduler: one way to run its commands, every state it has, and what it knows about jobs."""
