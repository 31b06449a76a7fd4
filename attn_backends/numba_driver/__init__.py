"""From a kernel in numba to a launch in a few microseconds, without numba's own dispatch; for the backends written in numba.

`toolchain.py` (numba, imported), `ptx.py` (a kernel's PTX, kept on disk), `driver.py` (CUDA's driver), `launch.py` (a kernel
with everything but its addresses), `plan.py` (a launch per kind of call). Imported by backends alone.
"""
