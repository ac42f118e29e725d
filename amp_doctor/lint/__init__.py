"""The linter: paths in, a LintReport out.

`run` is the front door: `discover` and `walk` turn paths into files, `cache` knows files from earlier runs, `gate` and
`glance` let go of those without mixed precision, and `parallel` (over `workers`) has `examine` look at the others.
`examine` turns the bytes of one file into its FileReport: `source` (with `notebook`) decodes them, `analyse` finds.

`analyse` takes a Source through three rooms. `syntax`, the only home of libcst, lowers it to a trace (`trace`), and
`project` does so for the first-party modules it imports. `fold` drives the `machine` over the trace with a set of
states (`state`, what one path knows: values of `objects`, assumptions of `assume`, the protocol of `typestate`); what
library names mean stands in `apis`. Out come `events`, and `checks` turn an event and the state before it into a
finding; those that ask about the text of a function rather than its runs use `paths`.

`settle` selects, `suppress` marks what comments excuse, `present` tells notebooks by cell, `fixes` applies edits.
"""
