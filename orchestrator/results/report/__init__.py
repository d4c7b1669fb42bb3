"""What came out, as one HTML page."""
