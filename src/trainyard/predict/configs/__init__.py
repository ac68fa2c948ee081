"""Readers and writers for the configurations of other frameworks: Megatron Core, torchtitan and DeepSpeed."""
