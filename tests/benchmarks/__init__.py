"""What is measured and compared with the outside world; `make test` does not run it."""
