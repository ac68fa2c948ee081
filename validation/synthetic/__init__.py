"""Synthetic profiles of training steps, simulated event by event, with causes of lost time planted in them."""
