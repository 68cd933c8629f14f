"""Campaigns: whatever befalls pools, images and label files, no wrong label, no harm, no dead process."""
