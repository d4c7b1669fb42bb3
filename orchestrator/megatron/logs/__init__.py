"""Parsers of the log lines of Megatron-LM and its relatives. Pure."""
