"""Pictures with labels: files on disk, what torchvision downloads, and pictures that a program draws.

Stands on nothing of ours; `data` makes data sets of them.
"""
