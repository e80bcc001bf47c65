"""Which cells no answer uses, so that they need not run: `unused` says it, of names (`cell_names`) and what is pure.

Stands on `trusted_notebook`. The folder above takes `unused`.
"""
