"""Pictures of figures on the axes of the paper."""
