"""Code that runs in other processes: the fork server, the child's main loop, the protocol."""
