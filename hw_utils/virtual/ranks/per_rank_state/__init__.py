"""What a process has once and a virtual rank has for itself: globals, modules, variables, settings, random numbers.

What can be exchanged is, when ranks take turns; what cannot is seen as soon as a rank changes it.
"""
