"""Values and vocabulary that every other layer shares; imports nothing of ours."""
