"""Pictures of a run: each `plot_*` takes records and `ax=None`, draws, and returns the Axes; one module a lesson.

The only room that knows matplotlib, with the training report in hosts. Stands on core and simulate.
"""
