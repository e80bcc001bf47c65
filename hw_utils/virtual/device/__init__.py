"""A rank's own virtual accelerator: what an operation costs on it, its streams and events, what programs call cuda.

Stands on `core` and on the engine; `cluster.py` takes `engine.DeviceEngine` in the engine's place.
"""
