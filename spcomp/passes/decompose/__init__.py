"""Programs over other formats: iterations cut in parts, conversions taken out."""
