"""The commit protocol, and the changes that become versions (format, section 6)."""
