"""The backends in this repository: one folder each, a manifest and its kernels. Loaded by name, never imported."""
