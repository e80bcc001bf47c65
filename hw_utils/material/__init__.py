"""What lessons work on: data sets, texts, models, layers that only take time, programs to read, settings of a training.

`sweep` is many of these at once, as many as there are cores. Stands on nothing of ours.
"""
