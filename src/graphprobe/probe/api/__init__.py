"""Every call of torch's API in an eager program, forward and backward: see `graphprobe.dump`."""
