"""Running on a GPU: PTX in the process, arrays of other libraries, streams, time."""
