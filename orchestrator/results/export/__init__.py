"""Results as files for others."""
