"""Which changes of a solution do a check's visible cases let pass? For those who write one.

It stands on the lessons, as `tools.lesson` reads them, and on the tests' planted mistakes. `mutants` makes the changes;
`search` tries them, and looks for a case that refuses what the visible ones let pass.
"""
