"""The only home of libcst: source text to traces, and node numbers back to places."""


class SyntaxFault(Exception):
    """The text is not Python that libcst can parse; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
