"""Wrappers, one file each: policies that change the decisions of another policy."""
