"""One pass over Q, K and V: rotate, scale, cast; V leaves transposed.

codes.py       a tile of numbers -> e4m3 and its scale; for other kernels to call on a tile in registers as well
rotation.py    the random-sign Hadamard matrix of Q and K
sequences.py   where a block of tokens lies
rows.py        blocks of Q and of K           columns.py   blocks of V, transposed
kernel.py      the pass                       transpose.py V that came quantised, transposed
launch.py      from tensors to `Operands`     tiles.py     how the pass is cut into programs, as data
"""
