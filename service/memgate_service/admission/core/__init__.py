"""What every gate shares: the operator's policy, questions and answers, the judgement."""
