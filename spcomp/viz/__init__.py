"""Beside the command line: pictures of matrices, formats, axes, schedules and measurements."""

from spcomp.display.picture import Picture as Picture
from spcomp.viz.forest import forest as forest
from spcomp.viz.matrix import format as format  # noqa: A004
from spcomp.viz.matrix import spy as spy
from spcomp.viz.roofline import Roofline as Roofline
from spcomp.viz.roofline import roofline as roofline
from spcomp.viz.schedule import Steps as Steps
from spcomp.viz.schedule import schedule as schedule
from spcomp.viz.timeline import Timeline as Timeline
from spcomp.viz.timeline import timeline as timeline

__all__ = [
    *("Picture", "Roofline", "Steps", "Timeline"),
    *("format", "forest", "roofline", "schedule", "spy", "timeline"),
]
