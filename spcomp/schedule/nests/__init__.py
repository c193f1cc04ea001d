"""Where steps find what they change: loops, blocks, their neighbours and places."""
