"""Hopper's own forward kernel, in Gluon: one warp copies, several warpgroups compute (docs/kernels/hopper.md)."""
