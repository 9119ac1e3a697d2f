"""The verbs of the command line, a file each; the logic they call lives in the other rooms."""
