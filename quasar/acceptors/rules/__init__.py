"""What acceptors share: the exact rules, and the longest path of accepted nodes."""
