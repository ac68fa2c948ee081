"""Post-training by reinforcement learning (GRPO, PPO): generation and training as two plans that share a cluster."""
