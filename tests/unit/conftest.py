"""Caches for all unit tests."""

import tests.process_caches  # noqa: F401  it works when it is imported
