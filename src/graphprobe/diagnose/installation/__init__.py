"""What of graphprobe works with the torch that is installed."""
