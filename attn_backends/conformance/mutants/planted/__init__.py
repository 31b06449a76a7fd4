"""Planted bugs by subject, at most three per clause. Each is a function that `plant` turns into a `Mutant`."""
