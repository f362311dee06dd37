"""What the adaptive drafter decides by."""
