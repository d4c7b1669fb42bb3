"""The figure as a picture, on the paper's own axes."""
