"""What commands did in a transaction, as files: read, compared, written to the project, taken back."""
