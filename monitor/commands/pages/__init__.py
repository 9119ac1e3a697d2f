"""Pages that are written for people: the parts of a report, and the report of a recorded file."""
