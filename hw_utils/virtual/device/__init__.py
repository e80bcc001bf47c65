"""A rank's own virtual accelerator: what an operation costs on it, its streams and events, what programs call cuda.

`costs` says what an operation takes, `cuda_names` what each function of torch.cuda gives, memory too; `cuda` puts them
in place. Stands on `core` and on the engine; `simulation.py` takes `engine.DeviceEngine` in the engine's place.
"""
