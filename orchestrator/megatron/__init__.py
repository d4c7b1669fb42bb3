"""What a GPT is to the papers: shapes, layouts, FLOPs, Megatron-LM's log lines. Pure, imports nothing of ours."""
