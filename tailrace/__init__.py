"""The command line and the supervisor for one machine: starts the real parts as processes, and never imports a service."""
