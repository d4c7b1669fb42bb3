"""Report of results as one HTML page."""
