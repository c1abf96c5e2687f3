"""What the page says: rows, figures and verdicts."""
