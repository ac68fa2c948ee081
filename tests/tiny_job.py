"""A job file of a model small enough for two processes on one core."""

TWO_REPLICAS = """
[model]
layers = 2
width = 16
ffn = 32
heads = 2
kv_heads = 1
head_dim = 8
[layout]
dp_replicate = 2
[recipe]
seq_len = 16
tokens_per_step = 128
"""
