"""The script language: ``from spcomp import script as T``; importing it imports no parser."""

from spcomp.script.decorators import *  # noqa: F403
from spcomp.script.syntax import *  # noqa: F403
