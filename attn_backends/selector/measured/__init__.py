"""Times that were measured on this machine: kept in one SQLite file, read when a decision first needs them.

    bucket.py       which calls share a time: what they ask for, and a place on a grid of powers of two
    machine.py      what a time is for: device, driver, torch, triton; backend, version, sources
    row.py          one measurement, and which ones are possible
    database.py     the file: reading and writing, several processes at once
    neighbours.py   times between known places of the grid
    store.py        `StoredTimes`: what ranking asks
    standing.py     the times of this machine, read once per process

No torch. `attn_backends.calibrate` measures and writes.
"""
