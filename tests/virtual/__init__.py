"""The virtual cluster: its clock against closed forms and SimGrid, its messages, trainings and limits."""
