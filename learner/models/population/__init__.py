"""Many policies of one network: rows of one matrix, which act and learn side by side."""
