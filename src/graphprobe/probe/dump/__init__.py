"""The dump of what compiled ops read and wrote: engines that see ops run, and observers that are told."""
