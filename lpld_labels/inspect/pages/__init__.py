"""Pages to look at: one HTML file each, with charts as SVG, that asks nothing of the network."""
