"""An answer of 200 MB."""

# expects: fail limit
predictions = {"both_send_first": bytes(200 * 10**6)}
