"""Sphinx's settings for the course's site."""

from latex2mathml.converter import convert

project = "Distributed deep learning, on one laptop"
author = "The course authors"
project_copyright = "the course authors; code MIT, texts and pictures CC BY 4.0"
extensions = ["myst_nb"]
exclude_patterns = [".doctrees"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "The set-up cell"
nb_code_prompt_hide = "The set-up cell"
myst_enable_extensions = ["attrs_inline", "dollarmath", "amsmath"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_math_renderer = "mathml"
html_theme_options = {"navigation_with_keys": True}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _math(writer, node):
    """A formula as MathML, which every browser of today draws by itself: nothing is fetched, readers read it out."""
    from docutils import nodes

    block = isinstance(node, nodes.math_block)
    formula = convert(node.astext(), display="block" if block else "inline")
    writer.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", inline_renderers=(_math, None), block_renderers=(_math, None))
