"""Composable formats: a matrix split into parts by the rules of its format."""
