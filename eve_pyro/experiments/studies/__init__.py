"""The studies: attribution, tables and energy."""
