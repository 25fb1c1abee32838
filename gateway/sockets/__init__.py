"""Room sockets."""
