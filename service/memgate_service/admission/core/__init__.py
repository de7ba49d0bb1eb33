"""What every gate shares: the policy, the questions, the judgement."""
