"""What a call takes and returns: tensors, their levels, arguments as storage, conversions."""
