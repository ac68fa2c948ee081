"""Job files of models small enough for two processes on one core."""

ONE_LAYER = """
[model]
layers = 1
hidden_size = 8
ffn_hidden_size = 8
heads = 1
kv_heads = 1
head_dim = 8
"""
"""The smallest model."""

TWO_REPLICAS = """
[model]
layers = 2
hidden_size = 16
ffn_hidden_size = 32
heads = 2
kv_heads = 1
head_dim = 8
[layout]
dp_replicate = 2
[recipe]
seq_len = 16
tokens_per_step = 128
"""
