"""Groups of child processes that run one configuration under supervision."""
