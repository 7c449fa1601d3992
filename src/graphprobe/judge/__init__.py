"""What a call showed, whether two observations are the same, and which stage a difference comes from."""
