"""What other ways to store labels do with damaged files."""
