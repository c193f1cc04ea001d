"""Before the route: ``from spcomp.sparsetir.script import tir as T``, the script language."""

from spcomp import script as tir

__all__ = ["tir"]
