"""Under the steps: how they find and change loops, blocks and their surroundings."""
