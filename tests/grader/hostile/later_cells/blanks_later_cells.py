"""An IPython input transformer that empties every later cell."""

# expects: fail
get_ipython().input_transformers_post.append(lambda lines: ["\n"])
