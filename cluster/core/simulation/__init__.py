"""What a policy would do to a workload: the production code under a simulated clock."""
