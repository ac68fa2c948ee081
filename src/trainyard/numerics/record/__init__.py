"""Record the tensors of a training: `trainyard numerics record`."""
