"""repro: a paper's figure is a program you can run."""

__version__ = "0.1.0"
