"""YAML configuration files, validated by pydantic models. Errors have file, line and column."""
