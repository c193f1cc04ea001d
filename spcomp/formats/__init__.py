"""Before the route: how sparse buffers can be stored, as pure descriptions."""

from spcomp.formats.hyb import Hyb as Hyb
from spcomp.formats.hyb import hyb as hyb
from spcomp.formats.library import bsr as bsr
from spcomp.formats.library import dbsr as dbsr
from spcomp.formats.library import dcsr as dcsr
from spcomp.formats.library import dia as dia
from spcomp.formats.library import ell as ell
from spcomp.formats.library import ell3d as ell3d
from spcomp.formats.library import padding as padding
from spcomp.formats.library import sr_bcrs as sr_bcrs
from spcomp.formats.rules import ComposableFormat as ComposableFormat
from spcomp.formats.rules import FormatRewriteRule as FormatRewriteRule
from spcomp.formats.rules import Kept as Kept
from spcomp.formats.sliced import SlicedDiagonal as SlicedDiagonal
from spcomp.formats.sliced import Slices as Slices
from spcomp.formats.sliced import sell as sell
from spcomp.formats.sliced import sliced_diagonal as sliced_diagonal

__all__ = [
    "ComposableFormat",
    "FormatRewriteRule",
    "Hyb",
    "Kept",
    "SlicedDiagonal",
    "Slices",
    "bsr",
    "dbsr",
    "dcsr",
    "dia",
    "ell",
    "ell3d",
    "hyb",
    "padding",
    "sell",
    "sliced_diagonal",
    "sr_bcrs",
]
