"""Steps that share the work of a loop: by non-zeros, segments, hubs, parts."""
