"""What stays in a slot after its turn, and which request may go on from it."""
