"""``python -m lpld_cli``."""

from .main import main

main()
