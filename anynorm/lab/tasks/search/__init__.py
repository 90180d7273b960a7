"""Architecture search: differentiable, by bandits, by a controller, and the evaluation of what was found."""
