"""Attention in e4m3: one pass that quantises Q, K and V, a Hopper kernel in Gluon and a portable one in Triton."""
