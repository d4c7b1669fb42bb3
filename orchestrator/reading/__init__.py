"""Reading of job logs: facts, iterations, metrics, verdicts and failure classes, and their storage in the ledger."""
