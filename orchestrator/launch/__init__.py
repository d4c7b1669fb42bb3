"""Plan -> script -> submitit -> attempt; scheduler -> ledger. Side effects live here, in the ledger and in the cli."""
