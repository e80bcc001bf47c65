"""Trace, profile and audit hooks that rewrite what every later function returns or raises."""


# expects: crashed fail
def fit_link(sizes, seconds):
    import sys
    import threading

    def hook(frame, event, arg):
        for name in ("value", "result", "data", "found", "latency_s", "bandwidth_Bps"):
            if name in frame.f_locals:
                frame.f_locals[name] = {"latency_s": 1e-3, "right": True}
        if event == "return" and frame.f_code.co_name in ("encode", "plain", "judge_one"):
            raise SystemExit(0)
        return hook

    for register in (sys.settrace, threading.settrace, sys.setprofile, threading.setprofile):
        register(hook)
    sys.addaudithook(lambda event, args: None)
    for frame in sys._current_frames().values():
        while frame is not None:
            frame.f_trace = hook
            frame = frame.f_back
    return 0.0, 0.0
