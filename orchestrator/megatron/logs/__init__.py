"""Parsers of log lines of Megatron-LM and related programs. Pure."""
