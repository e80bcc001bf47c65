"""A string that is equal to every string, one for each prediction."""


# expects: fail
class Text(str):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash("finishes")


predictions = {Text("both_send_first"): Text("finishes")}
