"""What a warp-specialised attention pipeline takes from a multiprocessor, and how its work overlaps: a model as data.

chip.py       what a multiprocessor has and does per clock
plan.py       one pipeline as numbers
budget.py     what it takes, beside what there is
search.py     plans that fit, for tuners to try
timeline.py   when its products, softmaxes and copies run
waves.py      how many blocks of threads a call makes, and how evenly they fill the device
drawing.py    the timeline as text and SVG

Used by the Hopper backend's `check`, by its ablation and by `attn-backends pipeline`. Light core: standard library only.
"""
