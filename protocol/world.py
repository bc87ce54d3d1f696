"""Placeholder; replaced by the reconciler's pure core."""
