"""The pipeline for Hopper: both products on its fp8 units, in Gluon."""
