"""`python -m pipelines`."""

from pipelines.command import main

if __name__ == "__main__":
    main()
