"""Profile in; findings and a recommendation out. Pure: no file, no clock, no torch."""
