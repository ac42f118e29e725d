"""The interpreter: traces in, events out.

`entries` chooses where to start, for methods `instances`, and gives each `entry` its state; `beliefs` are what one
learns from another. `interpreter` is the machine that `lint.fold` drives; `contexts` are what a `with` enters.
A term becomes a value in `evaluate` (`arithmetic`, `containers`, `marks`), a value is stored in `binding`, a loop asks
`loops`. A call goes through `calls`: into first-party code (`follow`, `classes`, `ducks`), to a library (`library`,
which knows `constructors`, `training`, `builtins`, `methods`, `tensor_methods`, `functions`), or to code nobody sees
(`escapes`). What tensors and modules are is told by `tensors`, `modules` and `ownership`; what unknown objects are, by
`roles`. `slicing` cuts traces before they are run, to what mentions (`mentions`) a telling word (`telling`).
"""
