"""Proof of work done: artifacts, blobs and their verification."""
