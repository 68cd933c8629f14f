"""Files made to do harm: pools, label files and images that must be refused or read, and nothing else."""
