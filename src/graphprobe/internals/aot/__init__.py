"""AOTAutograd: its graphs, and backends made of it."""
