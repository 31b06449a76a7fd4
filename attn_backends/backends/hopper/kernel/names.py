"""Gluon's names that changed between versions of Triton, under one name each."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

# 3.8 brings the short names, 3.9 takes the long ones away.
copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

# All threads of the warps that run this code, which is those of one partition. 3.7 has a new name.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
