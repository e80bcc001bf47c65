"""100,000 outputs."""

# expects: fail limit
from IPython.display import HTML, display

for n in range(100_000):
    display(HTML(f"<p>{n}</p>"))
