"""The command `tailrace`: what a person types, and what they read.

In: options, the environment, the state file of a running deployment. Out: text and exit codes.
It starts services as processes and never imports one.
"""
