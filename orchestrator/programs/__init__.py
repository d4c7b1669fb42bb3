"""Programs that an experiment describes as data, and the readers of their outputs."""
