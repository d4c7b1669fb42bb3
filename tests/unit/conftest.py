"""Caches for all unit tests."""

import tests.process_caches  # noqa: F401  the import has an effect
