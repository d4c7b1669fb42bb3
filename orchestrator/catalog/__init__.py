"""experiments/*.yaml -> Experiment -> cases: what the papers published, and how it shrinks."""
