"""Shell text to a tree, and the tree to words."""
