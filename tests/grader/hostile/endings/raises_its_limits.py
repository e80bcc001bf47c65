"""Raises its own limits."""

# expects: fail
import resource

for what in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, OSError) as error:
        print("denied:", error)
    else:
        raise RuntimeError("raised")
