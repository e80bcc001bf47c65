"""What the books of a run's memory say, against what theory says, to the byte."""
