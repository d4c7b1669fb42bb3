"""YAML files with file:line:column, read into pydantic models, every error at once."""
