"""What single checks look at, told by data that is made by hand."""
