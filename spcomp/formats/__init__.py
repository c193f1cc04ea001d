"""Before the route: how sparse buffers can be stored, as pure descriptions."""

from spcomp.formats.rules import Format as Format
from spcomp.formats.rules import FormatRewriteRule as FormatRewriteRule
from spcomp.formats.sliced import SlicedDiagonal as SlicedDiagonal
from spcomp.formats.sliced import sliced_diagonal as sliced_diagonal

__all__ = ["Format", "FormatRewriteRule", "SlicedDiagonal", "sliced_diagonal"]
