"""What crosses between a trusted driver and the process with the student's answers, and the line that it crosses by.

Plain values and tensors are packed (`packed_values`), the rest is lent; nothing that comes from the answers is
unpickled. The folder above takes all of it, and is not imported here.
"""
