"""Programs as data: what an experiment says of a program that it describes itself, and what an output of it shows."""
