"""Script in HTML output, in a picture, and in plain text."""

# expects: fail
from IPython.display import HTML, SVG, Markdown, display

display(HTML("<script>alert(1)</script><img src=x onerror=alert(2)><b>kept</b>"))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(3)</script></svg>'))
display(Markdown("<iframe src='javascript:alert(4)'></iframe>"))
print("</pre><script>alert(5)</script>")
raise ValueError("<script>alert(6)</script>")
