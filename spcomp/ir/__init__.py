"""The three levels of the IR, and what every level needs: nodes, visitors, printer, interpreter."""
