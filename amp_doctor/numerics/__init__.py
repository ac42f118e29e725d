"""Number formats and exponent histograms: values, standard library only."""
