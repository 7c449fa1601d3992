"""Views of what a run holds: computed from the store, never from torch."""
