"""Fails as a missing shared library does; its manifest is fine."""

raise OSError("libmissing_kernels.so.1: cannot open shared object file: No such file or directory")
