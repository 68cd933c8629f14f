"""Teachers: frozen classifiers that label, alone or several as one."""
