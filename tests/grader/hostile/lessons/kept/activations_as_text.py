"""1F1B's passes; every activation that came is kept as raw bytes until the step is over."""
# lesson: 08 one_f_one_b_in_flight
# body: one_f_one_b
def received(x, peer, rank, kept):
    if peer < rank:
        kept.append(x.numpy().tobytes())
    return x
