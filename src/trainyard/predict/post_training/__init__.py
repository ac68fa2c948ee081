"""Post-training by reinforcement learning (GRPO, PPO): generation of rollouts and training as two plans on a cluster."""
