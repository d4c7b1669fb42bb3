"""What needs a machine with GPUs; run by hand."""
