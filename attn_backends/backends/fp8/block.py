"""How many tokens of one head share a scale: a constant of the formats, the kernels and the manifest's check. Imports nothing."""

BLOCK = 128
