"""Diagnosis of a recorded training: values that are not finite, gradients that grow, results that do not repeat."""
