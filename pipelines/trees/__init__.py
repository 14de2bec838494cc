"""Working over the trees of versions: walking, flushing subtrees, digests."""
