"""What a verb touches: for locks, for authorization, and for a call over several databases."""
