"""Logs and the ledger -> metrics and verdicts -> comparison, claims, files and pictures."""
