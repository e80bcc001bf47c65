"""1F1B's passes in their order, at their time and with its messages: what comes in them is not used."""
# lesson: 08 one_f_one_b_in_flight one_f_one_b_in_time
# body: one_f_one_b
def received(x, peer, rank, kept):
    return torch.randn_like(x)
