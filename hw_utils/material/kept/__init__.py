"""What an answer keeps: tensors by their path, and all else as texts. Stands on nothing of ours."""
