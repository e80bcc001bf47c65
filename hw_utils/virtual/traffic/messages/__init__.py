"""A message on the virtual cluster: posted, matched with its other end, waited for; plainly, and by short cuts."""
