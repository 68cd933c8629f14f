"""Teachers: frozen classifiers that label images, alone or as an ensemble."""
