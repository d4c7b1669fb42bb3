"""Tests of the training program `orchestrator.pretrain`."""
