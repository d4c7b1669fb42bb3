"""Logs -> what they say, how an attempt ended, and its numbers; recorded in the ledger."""
