"""Pure core: values in, values out. No clock, I/O, log, lock or global state."""
