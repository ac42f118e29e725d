"""The checks: one short function per rule, grouped by family, registered by decorator."""
