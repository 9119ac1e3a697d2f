"""The fleet: uploads of vehicles, and what is made of all of them together."""
