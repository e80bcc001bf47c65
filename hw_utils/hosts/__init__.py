"""Runs beyond one cell: scripts for torchrun on real hosts, a measured link, a report of trainings.

Stands on launch, pictures and core.
"""
