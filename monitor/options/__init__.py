"""Declares what each verb takes; imports nothing of what does the work, so that help is quick."""
