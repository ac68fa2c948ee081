"""How other frameworks write a job: read as they are, and written so that they run."""
