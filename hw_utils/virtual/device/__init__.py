"""A rank's own virtual accelerator: what an operation costs on it, its streams and events, what programs call cuda.

`operation_costs` says what an operation takes, `torch_cuda_api` what each function of torch.cuda gives, memory too;
`cuda_devices` puts them in place; `hidden_gpus` takes a real one out of sight. Stands on core, ranks, traffic and the
engine; `run_in_one_process.py` takes `engine.DeviceEngine` in the engine's place.
"""
