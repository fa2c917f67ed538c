"""`python -m mlagen` is the command `mlagen`."""

from mlagen.cli import main

if __name__ == "__main__":
    main()
