"""The steps of schedules, one frozen value for each call of a Schedule."""
