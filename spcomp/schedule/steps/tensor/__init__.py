"""In position space: steps that replace blocks by intrinsics, or pad them for that."""
