"""Python processes that need no time to start: forks of one that has torch and its compiler loaded.

`Warm.executable` stands in the place of `sys.executable`. What would be another process with the environment or the
options that it is given starts as ever: `python -I` too, which is for what has to run alone.
"""
