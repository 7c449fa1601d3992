"""The dump of what compiled ops read and wrote: engines that see ops run, observers that are told, a session for both."""
