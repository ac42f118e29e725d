"""The interpreter: traces in, events out. `interpreter` is the machine that the fold drives; the rest are its rooms."""
