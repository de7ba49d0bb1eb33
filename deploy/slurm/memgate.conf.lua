-- Settings of memgate's Slurm plugins, read again for every job: no restart is needed. This file is
-- data; all settings, and what they mean, are in docs/slurm.md. Users may read it: no key in here.
return {
  url = "http://127.0.0.1:8080", -- an address, not a name
  key_file = "",                 -- such as "/etc/slurm/memgate.key"; readable by SlurmUser alone
  client_key_file = "",          -- such as "/etc/slurm/memgate-users.key"; users can read it
  admins = { 0 },                -- root, and SlurmUser, who settles held jobs: { 0, 64030 }, as `id -u slurm` prints

  -- which GPU of `memgate gpus` --gres=gpu:KIND means
  gpu_of_type = {
    a100 = "a100-80",
    h100 = "h100-80",
  },

  -- what happens where the policy (memgate.policy.json) says enforce: admit, reject or hold
  on_reject = "reject",       -- it does not fit
  on_uncertain = "admit",     -- it may not fit, or memgate cannot tell
  on_unanswered = "hold",     -- no answer yet: until there is one, for hold_seconds at most
  on_bad_spec = "reject",     -- the description is wrong
  on_undescribed = "admit",   -- a GPU and no description: counted (not "hold")
  on_late = "admit",          -- let in without an answer, does not fit ("reject": canceled unless it has started)
  on_error = "admit",         -- memgate's own Lua failed (not "hold")
}
