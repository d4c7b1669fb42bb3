"""results.db: everything that was submitted, what became of it, and every number read back."""
