"""Scripts of a few lines that show the first difference of two recorded trainings without the trainings."""
