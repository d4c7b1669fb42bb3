"""Bundles: a figure with everything a reviewer needs in one file, and its verification."""
