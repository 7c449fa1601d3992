"""The only room that touches private torch. Every name is probed; every patch is undone exactly."""
