"""A module beside the script with a global that is a rank's own, as picotron's process group manager is."""

current = None


class Manager:
    def __init__(self, rank):
        self.rank = rank


def start(rank):
    global current
    assert current is None
    current = Manager(rank)
