"""Mutants: planted bugs, each one function of a careless author, that the suite must catch. Imports nothing by itself.

    host      the victim: one correct backend, made of small functions (`seams`) that a mutant replaces one of
    planted   the bugs, by subject; each names the clause that it breaks
    plugins   lying plugins: manifests and modules that say what is not so
    catalogue all of them

A kill is a wrong value or a wrong refusal that a check of the mutant's clause, or of any other, reports; never a crash.
"""
