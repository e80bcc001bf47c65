"""Threads and a timer's signal that go on after the answer has returned, and write into every number they find."""


# expects: fail limit
def fit_link(sizes, seconds):
    import gc
    import signal
    import threading

    kept = [0.0, 0.0]

    def alter(*_):
        kept[:] = [1e-3, 1e6]
        for value in gc.get_objects():
            if type(value) is list and len(value) == 2 and value == [0.0, 0.0]:
                value[:] = [1e-3, 1e6]
            elif type(value) is dict and "right" in value:
                value["right"] = True

    def go_on():
        while True:
            alter()

    threading.Thread(target=go_on, daemon=True).start()
    threading.Timer(0.05, alter).start()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, alter)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    return kept


fit_link.__defaults__ = ()
