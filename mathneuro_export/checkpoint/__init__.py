"""Bytes on disk: headers, index, sources, the patching writer and the files beside the weights; no torch."""
