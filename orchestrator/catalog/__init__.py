"""Catalog of experiments: experiments/*.yaml -> Experiment -> cases at each scale."""
