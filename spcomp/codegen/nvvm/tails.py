"""Before code for a GPU: the last trips of a loop whose trips are written out in groups.

A loop over them would wait for memory in each trip. So they are one more group, in which trips
behind the end read what the first one reads, and keep nothing.
"""

from __future__ import annotations

from spcomp.ir import stmt as st
from spcomp.ir.access import Search
from spcomp.ir.analysis.exprs import trip_count
from spcomp.ir.analysis.fragments import is_fragment
from spcomp.ir.visitor import walk

_PLAIN = st.Seq | st.Let | st.Store | st.For


def keeps_to_itself(body: st.Stmt) -> bool:
    """Whether all that *body* does is to write registers of its thread, whatever the data."""
    for node in walk(body):
        if isinstance(node, Search) or (isinstance(node, st.Stmt) and not isinstance(node, _PLAIN)):
            return False
        if isinstance(node, st.For) and (node.kind == "bound" or trip_count(node) is None):
            return False
        if isinstance(node, st.Store) and not _is_private(node):
            return False
    return True


def _is_private(store: st.Store) -> bool:
    buffer = store.buffer
    private = buffer.scope == "local" and not is_fragment(buffer)
    return private and store.mask is None and not store.atomic
