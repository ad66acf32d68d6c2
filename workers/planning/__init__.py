"""What fits where: a model's shape, the cards, legal precisions, memory, and the plan made of them."""
