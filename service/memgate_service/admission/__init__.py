"""Gates in front of clusters: a job that is about to be created -> let in, refused or held.

``core`` has what all gates share: the operator's policy and one sequence of asking and judging.
Each other folder is a door to it: it turns its objects into cases, and does what was decided. In
reading order, which is the import order:

- core: ``core.policy``, ``core.rules``, ``core.layers``, ``core.policy_file``, ``core.places``,
  ``core.answers``, ``core.cases``, ``core.judgement``, ``core.sequence``, ``core.server_asker``,
  ``core.doctor``, ``core.rehearsal``
- the webhooks of Kubernetes: ``kubernetes.settings``, ``kubernetes.review``,
  ``kubernetes.quantities``, ``kubernetes.json_parts``, ``kubernetes.copies``,
  ``kubernetes.objects``, ``kubernetes.places``, ``kubernetes.cases``, ``kubernetes.patches``,
  ``kubernetes.cluster``, ``kubernetes.config_maps``, ``kubernetes.policy_resources``,
  ``kubernetes.policy_review``,
  ``kubernetes.events``, ``kubernetes.judging``, ``kubernetes.holding``, ``kubernetes.ends``,
  ``kubernetes.modes``, ``kubernetes.right_size``, ``kubernetes.gate``;
  the routes are in ``http/routes/webhooks.py``
- ``memgate controller``: ``kubernetes.leader``, ``kubernetes.rounds``, ``kubernetes.controller``,
  ``kubernetes.policy_status``, ``kubernetes.late``; rehearsals: ``kubernetes.shadow_pod``,
  ``kubernetes.images``, ``kubernetes.rehearsals``, ``kubernetes.rehearsing``; what exists already:
  ``kubernetes.reports``, ``kubernetes.background``; what has ended: ``kubernetes.finished``
- ``memgate certificates``: ``kubernetes.secret``, ``kubernetes.issuing``,
  ``kubernetes.certificates``
- ``memgate doctor --kubernetes``: ``kubernetes.doctor``
- ``memgate controller --kueue``: ``kueue.controller``
- ``memgate slurm``: ``slurm.records``, ``slurm.commands``, ``slurm.settling``, ``slurm.spool``,
  ``slurm.notices``, ``slurm.release``, ``slurm.outcomes``, ``slurm.usage``, ``slurm.why``;
  ``memgate doctor --slurm``: ``slurm.programs``, ``slurm.doctor``
- on compute nodes: ``slurm.measuring.nvml``, ``slurm.measuring.peaks``, ``slurm.measuring.prolog``,
  ``slurm.measuring.epilog``
- ``memgate slurm rehearse``: ``slurm.rehearsals.queue``, ``slurm.rehearsals.planning``,
  ``slurm.rehearsals.job_files``, ``slurm.rehearsals.known``, ``slurm.rehearsals.owners``,
  ``slurm.rehearsals.companion``, ``slurm.rehearsals.starting``, ``slurm.rehearsals.broker``

Nothing here imports the HTTP service or the command line: both import this.
"""
