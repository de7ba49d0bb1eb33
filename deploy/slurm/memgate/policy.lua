-- memgate.policy.json and a job -> the mode, what each decision leads to there, and which rule says so.
-- The same rules as admission/core/rules.py, which Kubernetes uses; a test compares them. docs/policy.md.

local cjson = require("cjson.safe")

local policy = {}

-- the strictest has the largest number
local MODES = { audit = 1, warn = 2, enforce = 3 }
-- what a rule may be about; the most specific has the largest number
local RANKS = { user = 5, account = 4, qos = 3, partition = 2, kind = 2, namespace = 1 }
local EXEMPT_BY = { user = true, group = true, account = true, label = true }
local PARTS = { mode = true, on = true, exempt = true, rules = true, note = true }

local ALL = { admit = true, reject = true, hold = true }
local NEVER_HELD = { admit = true, reject = true }
local WITHOUT_A_KIND = { admit = true, right_size = true }
local WITHOUT_A_WORD = { admit = true, reject = true, rehearse = true }
-- decisions, and what each may lead to
local ACTIONS = {
  reject = ALL, uncertain = ALL, unanswered = ALL, bad_spec = ALL,
  unknown_gpu = NEVER_HELD, undescribed = WITHOUT_A_WORD, untyped = WITHOUT_A_KIND, late = NEVER_HELD,
}

-- what a decision may lead to; the strictest has the largest number
local SEVERITY = { admit = 1, right_size = 2, rehearse = 3, hold = 4, reject = 5 }

local function fail(text, ...)
  error(text:format(...), 0)
end

local function list_of(value)
  return type(value) == "table" and value or { value }
end

local function check_table(value, where)
  if type(value) ~= "table" then fail("%s is not an object or a list", where) end
  return value
end

-- An object where a list belongs would be passed over in silence: ipairs finds nothing in it.
local function check_list(value, where)
  for key in pairs(check_table(value, where)) do
    if type(key) ~= "number" then fail("%s is not a list: write [{...}]", where) end
  end
  return value
end

local function check_text(value, where)
  if value ~= nil and type(value) ~= "string" then fail("%s is not a text", where) end
end

local function check_texts(value, where)
  for key, text in pairs(list_of(value)) do
    if type(text) ~= "string" or type(key) ~= "number" then fail("%s is not a text or a list of texts", where) end
  end
end

local function check_labels(value, where)
  for name, text in pairs(check_table(value, where)) do
    if type(name) ~= "string" or type(text) ~= "string" then fail("%s is not like {\"team\": \"a\"}", where) end
  end
end

local function check_choices(said, where)
  if said.mode ~= nil and not MODES[said.mode] then
    fail('%s: mode is "%s": it must be one of enforce, warn, audit', where, tostring(said.mode))
  end
  for decision, action in pairs(check_table(said.on or {}, where .. ".on")) do
    local allowed = ACTIONS[decision]
    if not allowed then fail("%s: on has %s, which is not a decision", where, tostring(decision)) end
    if not allowed[action] then fail('%s: on.%s is "%s"', where, decision, tostring(action)) end
  end
end

local function check_entry(entry, where, fields)
  local num_fields = 0
  for name, value in pairs(check_table(entry, where)) do
    if fields[name] then
      if name ~= "label" or (type(value) == "table" and next(value)) then num_fields = num_fields + 1 end
      if name == "label" then check_labels(value, where .. ".label") else check_texts(value, where .. "." .. name) end
    elseif name == "name" or name == "note" then
      check_text(value, where .. "." .. name)
    elseif fields == EXEMPT_BY or (name ~= "mode" and name ~= "on") then
      fail("%s has %s, which is not known", where, tostring(name))
    end
  end
  if num_fields == 0 then fail("%s names nobody: it needs a field such as account", where) end
end

local function check(document)
  for name in pairs(check_table(document, "the policy")) do
    if not PARTS[name] then fail("the policy has %s, which is not known", tostring(name)) end
  end
  check_text(document.note, "note")
  check_choices(document, "the policy")
  for index, entry in ipairs(check_list(document.exempt or {}, "exempt")) do
    check_entry(entry, ("exempt[%d]"):format(index), EXEMPT_BY)
  end
  for index, rule in ipairs(check_list(document.rules or {}, "rules")) do
    local where = ("rules[%d]"):format(index)
    check_entry(rule, where, RANKS)
    check_choices(rule, where)
  end
  return document
end

-- Read a policy's text, or raise an error that names what is wrong.
function policy.parse(text)
  local document, problem = cjson.decode(text)
  if document == nil then fail("it is not JSON: %s", tostring(problem)) end
  return check(document)
end

-- * stands for any text
local function matches_text(pattern, value)
  local escaped = pattern:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*")
  return value:find("^" .. escaped .. "$") ~= nil
end

local function matches(wanted, value)
  for _, pattern in ipairs(list_of(wanted)) do
    for _, one in ipairs(list_of(value)) do
      if one ~= nil and matches_text(pattern, one) then return true end
    end
  end
  return false
end

local function has_labels(wanted, labels)
  for name, pattern in pairs(wanted) do
    if not (labels and labels[name] and matches_text(pattern, labels[name])) then return false end
  end
  return true
end

local function is_about(entry, fields, subject)
  for name in pairs(fields) do
    local wanted = entry[name]
    if wanted ~= nil then
      local is_so
      if name == "label" then is_so = has_labels(wanted, subject.label) else is_so = matches(wanted, subject[name]) end
      if not is_so then return false end
    end
  end
  return true
end

local function rank_of(rule)
  local rank = 0
  for name, value in pairs(RANKS) do
    if rule[name] ~= nil then rank = math.max(rank, value) end
  end
  return rank
end

-- Return the most specific rule about a job in one partition; of equals, the first.
local function find_rule(document, subject)
  local found, name, best = {}, "cluster", 0
  for index, rule in ipairs(document.rules or {}) do
    local rank = rank_of(rule)
    if rank > best and is_about(rule, RANKS, subject) then
      found, best, name = rule, rank, rule.name or ("rules[%d]"):format(index)
    end
  end
  local on = {}
  for _, said in ipairs({ document.on or {}, found.on or {} }) do
    for decision, action in pairs(said) do on[decision] = action end
  end
  return { mode = found.mode or document.mode or "enforce", on = on, rule = name }
end

-- Return {mode =, on =, rule =, is_exempt =, others =} for a job. subject has user, group (a list), account,
-- qos, partition (a list), kind, namespace, label. Of several partitions the strictest mode counts; others
-- has the `on` of those that are as strict, so that the order in which a job names them changes nothing.
function policy.resolve(document, subject)
  for index, entry in ipairs(document.exempt or {}) do
    if is_about(entry, EXEMPT_BY, subject) then
      return { mode = "audit", on = {}, rule = entry.name or ("exempt[%d]"):format(index), is_exempt = true }
    end
  end
  local chosen
  local partitions = list_of(subject.partition)
  for index = 1, math.max(1, #partitions) do
    local part = setmetatable({ partition = partitions[index] or {} }, { __index = subject })
    local found = find_rule(document, part)
    if not chosen or MODES[found.mode] > MODES[chosen.mode] then
      chosen, found.others = found, {}
    elseif found.mode == chosen.mode then
      table.insert(chosen.others, found.on)
    end
  end
  return chosen
end

-- Return the stricter of two actions.
function policy.stricter(one, other)
  return SEVERITY[other] > SEVERITY[one] and other or one
end

-- Say whether a policy may be anything but audit for a job of which some fields are not known, such as
-- the account that Slurm fills in later: what is known decides, and every rule about what is not.
function policy.may_speak(document, subject, unknown)
  local chosen = policy.resolve(document, subject)
  if chosen.is_exempt then return false end
  if chosen.mode ~= "audit" then return true end
  for _, rule in ipairs(document.rules or {}) do
    for _, name in ipairs(unknown) do
      if rule[name] ~= nil and (rule.mode or document.mode or "enforce") ~= "audit" then return true end
    end
  end
  return false
end

-- the last policy that could be read, by its path: {text =, document =}
local last = {}

-- the number of the error "No such file or directory"
local ENOENT = 2

-- Return what is in a file; nil, and whether it is not there at all: one that may not be read is.
local function read_text(path)
  local file, _, errno = io.open(path, "rb")
  if not file then return nil, errno == ENOENT end
  local text = file:read("*a")
  file:close()
  return text
end

-- Return the policy in a file, and what is wrong with the file. A broken one leaves the last good one
-- in force; without that, nothing is enforced. A file that was never there is no policy: enforce.
function policy.read(path, is_optional)
  local text, is_missing = read_text(path)
  local known = last[path]
  if text and known and known.text == text then return known.document end
  if is_missing and not known and is_optional then return { mode = "enforce" } end
  local is_right, result = pcall(policy.parse, text or "")
  if text and is_right then
    last[path] = { text = text, document = result }
    return result
  end
  local problem = path .. ": " .. (text and tostring(result) or "it cannot be read")
  return known and known.document or { mode = "audit" }, problem
end

return policy
