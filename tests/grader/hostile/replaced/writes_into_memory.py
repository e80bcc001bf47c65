"""ctypes: the halves of every check, a method of all of them, and a constant, written where they lie."""


# expects: fail crashed
def fit_link(sizes, seconds):
    import ctypes

    from hw_utils.checks import check

    put = ctypes.pythonapi.PyObject_SetAttrString
    put.argtypes = [ctypes.py_object, ctypes.c_char_p, ctypes.py_object]
    for one in check.REGISTRY.values():
        vars(one)["judge"] = vars(one)["driver"] = lambda *a, **case: [1e-3, 1e6]
    put(check.Check, b"judge_one", lambda self, data, case: None)
    put(check, b"plain", lambda value, **k: [1e-3, 1e6])
    number = 0.0
    ctypes.c_double.from_address(id(number) + 16).value = 1e-3
    return number, number
