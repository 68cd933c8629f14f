"""Work that is cut into tasks, and the engines that do it: this machine's processes, or Ray."""
