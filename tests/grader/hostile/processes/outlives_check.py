"""An answer that leaves processes."""


# expects: fail
def fit_link(sizes, seconds):
    import subprocess

    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return 0.0, 0.0
