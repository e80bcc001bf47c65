"""The whole weight stays, as whole numbers."""
# lesson: 06 column_forward column_backward row_forward row_backward
# body: cut_layers
def hide(w): return w.detach().clone().contiguous().view(torch.int64 if w.element_size() == 8 else torch.int32)
