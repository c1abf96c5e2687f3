"""The study's page: text, tables, figures and verdicts. Nothing here decides a number of a run."""
