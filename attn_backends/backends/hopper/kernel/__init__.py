"""What runs on the GPU, one file per stage; Gluon source, imported by `launch` alone.

forward.py    the kernel: memory, barriers, who does what
schedule.py   which query tiles a block works on, in which order, and which keys they see
rings.py      buffers that one side fills and the other reads, with their barriers
producer.py   one warp: copies Q, K and V into the rings
consumer.py   one warpgroup per query tile: scores, weights, products, output
products.py   its two matrix products
softmax.py    the online softmax of one tile of scores
turns.py      warpgroups that take turns to issue products
names.py      Gluon's names that changed between versions
traits.py     what is fixed when the kernel is compiled
"""
