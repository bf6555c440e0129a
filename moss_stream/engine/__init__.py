"""The engine: one thread that encodes, prefills, verifies and decodes for every stream."""
