"""III to III, for GPUs: functions become kernels, their loops grids of blocks and threads."""
