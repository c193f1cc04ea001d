"""Under torch.compile: aggregation along edges is found in its graphs and given to our kernels."""
