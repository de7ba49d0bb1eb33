-- A Slurm job -> the question for POST /estimate: the spec that its owner wrote, the GPU it asks for.
-- All of it comes from users: sizes are bounded, and nothing is passed on that is not one JSON object.

local cjson = require("cjson.safe")

local question = {}

local DIRECTIVE = "#MEMGATE"
local PREFIX = "memgate:"
-- how far to look for directive lines: slurmctld waits in the meantime, and a script may have 4 MB
local MAX_HEAD_BYTES = 262144
local MAX_DEPTH = 50
local MAX_GPUS = 2 ^ 20
local MAX_ARGUMENTS_BYTES = 2048
-- letters by which a word may differ from ours and still be meant as it
local MAX_DISTANCE = 2
-- how much of such a line is shown
local MAX_SHOWN = 40
-- cards that one job may get, by its partitions
local MAX_CARDS = 4
-- what Slurm has for --exclusive
local WHOLE_NODES = 0
-- what Slurm has instead of a number that was not given
local UNSET = { [4294967294] = true, [4294967295] = true, [65534] = true, [65535] = true, [0] = true }

-- Return what the directive lines of a script say, joined, and whether one comes too late: like
-- #SBATCH they count up to the first line that is a command.
local function directives(script)
  if not script:find(DIRECTIVE, 1, true) then return nil, false end
  local found, at = {}, 1
  while at <= math.min(#script, MAX_HEAD_BYTES) do
    local stop = script:find("\n", at, true) or #script + 1
    if script:sub(at, at + #DIRECTIVE - 1) == DIRECTIVE then
      local text = script:sub(at + #DIRECTIVE, stop - 1)
      if text:find("^[%s{]") then found[#found + 1] = text end
    else
      local first = script:match("^[ \t\r]*([^ \t\r\n])", at)
      if first and first ~= "#" then break end
    end
    at = stop + 1
  end
  local is_late = script:find("\n" .. DIRECTIVE .. " ", at - 1, true) ~= nil
  return #found > 0 and table.concat(found, "\n") or nil, is_late
end

-- Return how many letters must be added, removed or changed to make one word of another.
local function distance(one, other)
  local row = {}
  for column = 0, #other do row[column] = column end
  for line = 1, #one do
    local diagonal = row[0]
    row[0] = line
    for column = 1, #other do
      local change = diagonal + (one:byte(line) == other:byte(column) and 0 or 1)
      diagonal = row[column]
      row[column] = math.min(change, diagonal + 1, row[column - 1] + 1)
    end
  end
  return row[#other]
end

local function is_near(word)
  word = word:upper():gsub("[^%w]", "")
  return #word <= #DIRECTIVE + 1 and distance(word, DIRECTIVE:sub(2)) <= MAX_DISTANCE
end

-- Return the beginning of a comment line that looks like a directive and is not one; nil if there is none.
local function near_miss(script)
  local head = script:sub(1, MAX_HEAD_BYTES)
  for line, word in ("\n" .. head):gmatch("\n([ \t]*#[ \t]*([%w_:%-]+)[ \t]*{)") do
    local is_ours = line:find("^" .. DIRECTIVE .. "[ \t{]") ~= nil
    if not is_ours and is_near(word) then return (line:gsub("[%c ]+", " "):sub(1, MAX_SHOWN)) end
  end
end

-- Return a warning about something that may have been meant as a description; nil if there is none.
function question.find_near_miss(job)
  local word = type(job.comment) == "string" and job.comment:match("^%s*([%w_%-]+)%s*:%s*{")
  if word and is_near(word) then
    return ("--comment begins with %s: if it describes the job, write %s"):format(word, PREFIX)
  end
  local line = type(job.script) == "string" and near_miss(job.script)
  if line then
    return ('a line begins with "%s": if it describes the job, write %s {'):format(line, DIRECTIVE)
  end
end

-- Say whether the owner wants the job not to be rehearsed: --comment=memgate:skip
function question.is_skipped(job)
  return type(job.comment) == "string" and job.comment:match("^" .. PREFIX .. "%s*skip%s*$") ~= nil
end

-- Return the spec as its owner wrote it, nil if there is none; and a warning, or nil. The command
-- line comes before the script, except in the first part of a heterogeneous job: some versions of
-- Slurm give it the comment of a later part.
function question.find_spec(job)
  local comment = job.comment
  local is_said = type(comment) == "string" and comment:sub(1, #PREFIX) == PREFIX and not question.is_skipped(job)
  if is_said and not (job.het_job_offset == 0 and type(job.script) == "string") then
    return comment:sub(#PREFIX + 1)
  end
  if type(job.script) ~= "string" then return nil end
  local text, is_late = directives(job.script)
  if is_said then return text or comment:sub(#PREFIX + 1) end
  if text or not is_late then return text end
  return nil, ("a line with %s after the first command is not read"):format(DIRECTIVE)
end

-- Return a remark on a first part of a heterogeneous job whose description may be another part's.
function question.find_doubt(job)
  local is_first = job.het_job_offset == 0 and type(job.script) == "string"
  if not is_first or question.is_skipped(job) or directives(job.script) then return nil end
  return "the first part is judged by --comment, which some versions of Slurm take from a later part:"
    .. (" describe it in the script, by %s {...}"):format(DIRECTIVE)
end

-- Return the arguments of a job's script; nil if they are too long to be noted.
function question.find_arguments(job)
  local found, num_bytes = {}, 0
  local argv = job.argv
  for index = 1, (type(job.argc) == "number" and job.argc or 1) - 1 do
    local text = type(argv) == "table" and (argv[index] or argv[tostring(index)])
    if type(text) ~= "string" then return nil end
    found[index], num_bytes = text, num_bytes + #text
  end
  return num_bytes <= MAX_ARGUMENTS_BYTES and found or nil
end

-- Return what is wrong with a spec, nil if nothing is, as far as can be seen from here.
function question.find_problem(spec, max_bytes)
  if #spec > max_bytes then
    return ("it is %d bytes long, %d are allowed"):format(#spec, max_bytes)
  end
  local reader = cjson.new()
  reader.decode_max_depth(MAX_DEPTH)
  reader.decode_invalid_numbers(false)
  local said, problem = reader.decode(spec)
  if type(said) ~= "table" or not spec:find("^%s*{") then
    return "it is not a JSON object" .. (problem and ": " .. problem or "")
      .. '; write {"model": {...}, ...}, not YAML'
  end
end

local function given(value)
  return type(value) == "number" and not UNSET[value] and value > 0
end

local function number(value)
  return given(value) and value or 1
end

-- Add the GPUs of a request like gres:gpu:a100:2,gres:shard:1 (gres/gpu:a100:2 in later versions).
local function read_tres(text, times, found)
  for part in (text or ""):gmatch("[^,]+") do
    local rest = part:gsub("^%s*gres[:/]", ""):match("^gpu(.*)$")
    if rest and (rest == "" or rest:find("^[:=(]")) then
      rest = rest:gsub("%(.*$", "")
      local count = tonumber(rest:match("[:=](%d+)$") or 1)
      local kind = rest:gsub("[:=]%d+$", ""):match("^[:=](.+)$") or ""
      if count > 0 then
        found.kinds[kind] = true
        found.count = math.min(found.count + count * times, MAX_GPUS)
      end
    end
  end
end

-- Return how many GPUs of a job are in one node, nil if that is not known: as many as it asks for by
-- node or by task, otherwise what its nodes have if they all have the same.
local function gpus_per_node(job, count)
  local per_node, per_task = { kinds = {}, count = 0 }, { kinds = {}, count = 0 }
  read_tres(job.tres_per_node, 1, per_node)
  read_tres(job.tres_per_task, number(job.ntasks_per_node), per_task)
  local together
  if per_node.count > 0 then
    together = per_node.count
  elseif per_task.count > 0 and given(job.ntasks_per_node) then
    together = per_task.count
  elseif given(job.min_nodes) then
    together = count / job.min_nodes
  end
  local is_whole = together and together >= 1 and together == math.floor(together)
  if is_whole and count % together == 0 then return together end
end

-- Return the kinds of GPU that a job asks for ("" is any kind), and how many; nil if it asks for none.
-- A job that asks in several ways, such as --gpus and --gres, gets the kinds of all of them; one that
-- asks for whole nodes gets all GPUs of them, named or not: how many that is, is not known.
local function asked_gpus(job)
  local asked = { kinds = {}, count = 0 }
  for _, way in ipairs({
    { job.tres_per_job, 1 }, { job.tres_per_node, number(job.min_nodes) },
    { job.tres_per_task, number(job.num_tasks) }, { job.tres_per_socket, 1 },
  }) do
    local found = { kinds = asked.kinds, count = 0 }
    read_tres(way[1], way[2], found)
    if asked.count == 0 then asked.count = found.count end
  end
  if asked.count == 0 and job.shared == WHOLE_NODES then
    asked.kinds[""], asked.count, asked.is_uncounted = true, number(job.min_nodes), true
  else
    asked.per_node = gpus_per_node(job, asked.count)
  end
  return asked.count > 0 and asked or nil
end

-- Return the GPU of a job that names no kind: by its constraint, or its partition, or the one for all;
-- nil and why if that is not known. If its partitions differ: also a list of all.
local function untyped_gpu(job, settings)
  local features = job.features or ""
  if settings.gpu_of_feature[features] then return settings.gpu_of_feature[features] end
  for word in features:gmatch("[^%s&|,*!%[%]%(%)]+") do
    if settings.gpu_of_feature[word] then
      return nil, ("--constraint=%s is more than the one word %s"):format(features, word)
    end
  end
  local found, is_known = {}, {}
  for partition in (job.partition or ""):gmatch("[^,]+") do
    local name = settings.gpu_of_partition[partition] or settings.default_gpu
    if not is_known[name] then found[#found + 1], is_known[name] = name, true end
  end
  if not found[1] then found, is_known = { settings.default_gpu }, { [settings.default_gpu] = true } end
  if is_known[""] then
    local which = found[2] and "the GPU of one of its partitions has not been set up"
      or "it does not say which kind of GPU: --gres=gpu:KIND:1"
    return nil, which
  end
  if #found > MAX_CARDS then return nil, "its partitions have too many kinds of GPU" end
  return found[1], nil, found[2] and found or nil
end

-- Say whether a job is a part of a heterogeneous one: its GPUs are not all that there are.
local function is_part(job)
  local offset = job.het_job_offset
  return type(offset) == "number" and offset < 65534
end

-- Say whether neither a constraint nor a partition decides which kind of GPU a job gets.
local function is_left_open(job, settings)
  if (job.features or "") ~= "" then return false end
  for partition in (job.partition or ""):gmatch("[^,]+") do
    if settings.gpu_of_partition[partition] then return false end
  end
  return true
end

-- Return {name =, names =, count =, per_node =, is_uncounted =, is_part =}; nil if the job asks for no GPU;
-- false and why if it is not known which. names is a list if it may get one of several.
function question.find_gpu(job, settings)
  local asked = asked_gpus(job)
  if not asked then return nil end
  local kind = next(asked.kinds)
  if next(asked.kinds, kind) then return false, "it asks for several kinds of GPU" end
  local name, unknown, names = settings.gpu_of_type[kind]
  if not name and kind == "" then name, unknown, names = untyped_gpu(job, settings) end
  if not name or name == "" then
    return false, unknown or ("which GPU gpu:%s is has not been set up"):format(kind)
  end
  return {
    name = name, names = names, count = asked.count, per_node = asked.per_node,
    is_uncounted = asked.is_uncounted, is_part = is_part(job) or nil,
    is_any = kind == "" and not asked.is_uncounted and is_left_open(job, settings) or nil,
  }
end

-- Return a request for GPUs with the kind filled in: gres:gpu:2 -> gres:gpu:t4:2; nil if it names one.
local function with_kind(text, kind)
  local entries, is_filled = {}, false
  for entry in (text or ""):gmatch("[^,]+") do
    local before, after = entry:match("^(g?r?e?s?[:/]?gpu)(:?%d*)$")
    if before then entry, is_filled = before .. ":" .. kind .. after, true end
    entries[#entries + 1] = entry
  end
  return is_filled and table.concat(entries, ",") or nil
end

-- Fill in the kind of GPU wherever a job asks for any; returns whether it does so anywhere.
function question.fill_in(job, kind)
  local is_filled = false
  for _, field in ipairs({ "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket" }) do
    local text = with_kind(job[field], kind)
    if text then job[field], is_filled = text, true end
  end
  return is_filled
end

-- Return a job as Slurm will have it: in the default partition if it names none, and with whole
-- nodes if a partition allocates only those. Partitions are as Slurm gives them to a plugin.
function question.complete(job, partitions)
  local names, shared = job.partition, job.shared
  for name, partition in pairs(partitions or {}) do
    if not names and partition.flag_default == 1 then names = name end
  end
  for name in (names or ""):gmatch("[^,]+") do
    if partitions and partitions[name] and partitions[name].max_share == 0 then shared = WHOLE_NODES end
  end
  local known = { partition = names, shared = shared }
  return setmetatable(known, { __index = function(_, field) return job[field] end })
end

-- Say whether a description says itself how many GPUs there are.
local function has_world(spec)
  local said = cjson.decode(spec)
  local divided = type(said) == "table" and said.distributed
  return type(divided) == "table" and type(divided.world_size) == "number"
end

-- Return how a request names a GPU of the settings: by its name, or by its size.
local function described(name)
  return name:match("^%s*{(.*)}%s*$") or ('"name": %s'):format(cjson.encode(name))
end

-- Return the body of the request. The spec goes as it was written, since Lua cannot distinguish []
-- from {}. How many GPUs there are is left out where Slurm does not know all of them.
function question.body(spec, gpu, name)
  local parts = { described(name or gpu.name) }
  if not gpu.is_uncounted and not (gpu.is_part and has_world(spec)) then
    parts[2] = ('"count": %d'):format(gpu.count)
    if gpu.per_node and gpu.count > 1 then parts[3] = ('"per_node": %d'):format(gpu.per_node) end
  end
  return ('{"job": %s, "gpu": {%s}}'):format(spec, table.concat(parts, ", "))
end

-- Return what a person should know about the GPUs that were asked about, nil if there is nothing.
function question.remark(spec, gpu)
  if gpu.is_uncounted and not has_world(spec) then
    return "this job takes whole nodes, and how many GPUs they have is not known here: the answer is"
      .. ' for one process; say it with --gres=gpu:N or in the description ("distributed")'
  end
end

return question
