"""What to try next, and where it is kept; the only importer of optuna."""

import optuna

# Optuna reports every study and trial on stderr; a run tells its own story.
optuna.logging.set_verbosity(optuna.logging.WARNING)
