"""Slurm: its commands, job states, records of jobs, reasons, and facts of a site."""
