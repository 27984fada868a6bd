"""Pure algorithms: standard library and NumPy, no framework, no clock, no I/O."""
