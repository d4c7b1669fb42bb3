"""A case -> the program that runs it: one module per argument dialect."""
