"""What users write: the options of source and sink, checked before anything is asked."""
