"""What upkeep does in slices; verbs bring it forward for the lanes that they use."""
