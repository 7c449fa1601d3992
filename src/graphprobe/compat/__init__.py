"""Names that users of other tools know; each module only translates."""
