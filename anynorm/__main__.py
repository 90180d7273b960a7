"""Run the command line by `python -m anynorm`."""

from anynorm.cli import main

main()
