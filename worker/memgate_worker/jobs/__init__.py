"""A job spec -> a model, a batch, a loss, an optimizer and the loop over them. Needs torch."""
