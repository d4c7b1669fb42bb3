"""Generator of the pages cli.md, experiments.md and profiles.md of docs/reference from the code."""
