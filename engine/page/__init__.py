"""A page for people: what is served, how far the log goes, and a place to look one's own receipt up."""
