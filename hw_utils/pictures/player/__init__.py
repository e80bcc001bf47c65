"""A run that plays: one self-contained HTML fragment, inline SVG and a little JavaScript, without kernel or network.

`views` draws what happened, `fragment` puts it together with the controls.
Stands on core, figure, plots, chunks, memory and lesson_08: the words and colours of a picture are theirs.
"""

from hw_utils.pictures.player.fragment import Player, play

__all__ = ["Player", "play"]
