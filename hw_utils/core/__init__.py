"""What a run is, however its ranks run: events and sums over them, errors, the network's cost, the student's lines.

Stands on nothing of ours. Everybody may take everything.
"""
