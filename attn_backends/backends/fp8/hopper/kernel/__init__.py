"""What runs on the GPU; Gluon source, imported by `launch` alone. Rings, tickets and turns are those of `hopper`.

forward.py    the kernel: memory, barriers, who does what
producer.py   one warp: copies Q, K and V^T into the rings
consumer.py   one warpgroup per query tile, from its scores to its output
overlapped.py, one_by_one.py   two ways through a tile's keys
products.py   its two matrix products, and weights as an operand of fp8
softmax.py    the online softmax of one tile of scores that has a scale of its own
scales.py     the scales of a tile's blocks
registers.py  how numbers lie in registers
traits.py     what is fixed when the kernel is compiled
"""
