"""Where bytes lie when they do not lie on this machine: addresses, requests that may fail, what is kept."""
