"""Records of frames that fail to trace, and their replay in another process."""
