"""Pictures of a run: each `plot_*` takes records and `ax=None`, draws, and returns the Axes.

A module a lesson (`lesson_02` to `lesson_08`), `plots` and `memory` for any run, `perfetto` for trace files; `figure`
is what all stand on, `player` the pages that play a run. The only room that knows matplotlib, with the training
report in hosts. Stands on core and simulate.
"""
