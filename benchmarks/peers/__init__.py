"""Against other libraries."""
