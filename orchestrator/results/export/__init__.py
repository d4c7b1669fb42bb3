"""Export of results as files."""
