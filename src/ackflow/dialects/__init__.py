"""Other systems' interfaces to the same broker, one folder for each.

A dialect holds everything of its system: the verbs it adds to the broker's core, its HTTP routes,
its Python style, its types and its spelling of errors. Its name and its defaults for groups are in
`options.py`. The core imports none of them.
"""
