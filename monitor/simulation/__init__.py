"""Simulated drives. Pure: values in, values out; no clock, no I/O, the seed is an argument."""
