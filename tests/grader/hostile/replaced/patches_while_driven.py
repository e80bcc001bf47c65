"""Patches what encodes the data, from inside the answer."""


# expects: fail
def fit_link(sizes, seconds):
    import hw_utils.core.plain_data
    import sys

    right = [1e-3, 1e6]
    for module in list(sys.modules.values()):
        if getattr(module, "encode", None) is hw_utils.core.plain_data.encode:
            module.encode = lambda value: b"[0.001, 1000000.0]"
    return 0.0, 0.0
