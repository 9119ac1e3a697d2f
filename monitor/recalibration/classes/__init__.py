"""Pure: recalibration of class probabilities, one file a method, and the document of one."""
