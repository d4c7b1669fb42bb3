"""Planning of jobs: checks of cases against a machine, their predicted cost, and their program on a cluster."""
