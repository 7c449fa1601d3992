"""Steps of a diagnosis in fresh processes, where a fork is impossible."""
