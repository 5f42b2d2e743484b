"""The commands of `changelog`, one file each."""
