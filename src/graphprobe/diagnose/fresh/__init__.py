"""The steps of a diagnosis, each in a process of its own: forked, or fresh where a fork is impossible."""
