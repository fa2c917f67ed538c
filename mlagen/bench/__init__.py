"""`mlagen bench`: whole decode steps on a GPU, ours beside baselines. Nothing else of the library imports
this."""
