"""What lessons work on: data sets, texts, models, layers that only take time, programs to read, settings of a training.

Stands on nothing of ours.
"""
