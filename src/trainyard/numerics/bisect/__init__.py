"""Search for the option, variable or interpreter that makes a training numerically different."""
