"""Records of one training on several devices, to be compared with that on the CPU."""
