"""What exec server and pool server have in common: the life of the process, the guard of every route, faults, pages."""
