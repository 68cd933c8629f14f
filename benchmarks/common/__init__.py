"""What every benchmark shares: timing, circumstances, real labels, the original layout."""
