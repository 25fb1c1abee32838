"""The command `tailrace`: its options, its output and its exit codes.

In: options, the environment, the state file of a running deployment. Out: text and exit codes.
It starts services as processes and never imports one.
"""
