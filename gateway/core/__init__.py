"""Pure decisions over frozen values: nothing here reads a clock, a socket, a file or a database.

A function takes what is and returns what shall be; its caller writes that down. Times come in as arguments.
"""
