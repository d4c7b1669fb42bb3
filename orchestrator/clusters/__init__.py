"""Cluster profiles: the settings of a site, read from `clusters/*.yaml`."""
