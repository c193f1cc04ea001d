"""Programs over other formats: iterations split into parts, conversions taken out."""
