"""Where replacements, events and leases are kept: SQLite embedded, PostgreSQL for many machines."""
