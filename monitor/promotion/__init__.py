"""How a recalibrator is born, tried, promoted and sent home: values in, values out."""
