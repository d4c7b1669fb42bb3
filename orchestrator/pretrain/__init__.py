"""Training program: a GPT on Megatron-Core with Megatron-LM's log lines (`python -m orchestrator.pretrain`).

The package imports nothing of the rest of `orchestrator`, so a container with torch and megatron-core can run it.
"""
