"""Calibration: the backends of this machine timed over the shapes that matter here, for `selector.measured` to keep.

Light, no torch:
    grid.py       the built-in shapes, out of grid.toml
    cells.py      requests of model configs and decision logs as cells of the benchmark; cells as JSON
    points.py     what is to be timed, in an order that may be cut anywhere
    crew.py       one process per backend, so that one that dies or hangs costs its own times alone
    rows.py       who is timed on a cell, and the rows of the answers
    run.py        the whole run: within its minutes, resumable, saved after each bucket
    held_out.py   shapes that nobody tuned for, drawn from a seed
    near.py       who is worth timing, by what is predicted
    picks.py      who would be picked for a request, by which grounds
    kept.py       the calibrated times that picks were judged by, as plain values
    regret.py     what the picks cost beside the best ones, out of a results file

With torch:
    worker.py     the process of one backend
    timing.py     one backend on one cell
    regret_run.py the backends timed on held-out shapes
    online.py     measuring between the calls of a program
"""
