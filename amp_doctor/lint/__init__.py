"""The linter: paths in, a LintReport out. `syntax` is the only home of libcst."""
