"""Tests that need a machine with GPUs, run by hand."""
