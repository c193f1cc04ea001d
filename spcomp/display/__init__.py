"""Below the route: what notebooks and pages show of arrays and text, as SVG and HTML."""
