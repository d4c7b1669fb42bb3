"""The rules that Megatron-LM enforces on a configuration. Pure."""
