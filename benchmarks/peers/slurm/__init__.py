"""Debian's Slurm with three nodes on one machine, each with a plugind and a fake device plugin."""
