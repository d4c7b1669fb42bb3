"""Parsers of log lines of Megatron-LM and related programs. Pure."""

from __future__ import annotations

ALPA_PROGRAM = "megatron-alpa"
"""Name of the program that runs Alpa's benchmark. It prints a result and no iterations."""
