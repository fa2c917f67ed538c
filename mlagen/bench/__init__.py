"""`mlagen bench`: whole decode steps on a GPU, ours beside baselines. Nothing else imports this."""
