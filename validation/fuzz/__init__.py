"""Coverage-guided fuzzing of everything that reads a file: `make fuzz`, or `python -m validation.fuzz [READER...]`.

`readers.py` lists the readers. `worker.py` runs one of them under atheris, `scan.py` the compiled scanner under
libFuzzer and the sanitizers, and `cover.py` measures which lines the corpus reaches. `tests/fuzz/test_corpus.py`
replays the corpus in `corpus/` without any of these tools.
"""
