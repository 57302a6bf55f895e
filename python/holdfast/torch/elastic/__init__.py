"""Changes of TP x PP x DP of a job whose processes live."""
