"""`python -m mathneuro_export`."""

from mathneuro_export.cli.main import main

main()
