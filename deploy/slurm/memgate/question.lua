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

-- Return the spec as its owner wrote it, nil if there is none; and a warning, or nil. The command
-- line comes before the script.
function question.find_spec(job)
  local comment = job.comment
  if type(comment) == "string" and comment:sub(1, #PREFIX) == PREFIX then
    return comment:sub(#PREFIX + 1)
  end
  if type(job.script) ~= "string" then return nil end
  local text, is_late = directives(job.script)
  if text or not is_late then return text end
  return nil, ("a line with %s after the first command is not read"):format(DIRECTIVE)
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

local function number(value)
  if type(value) ~= "number" or UNSET[value] or value < 0 then return 1 end
  return value
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

-- Return the kinds of GPU that a job asks for ("" is any kind), and how many; nil if it asks for none.
-- A job that asks in several ways, such as --gpus and --gres, gets the kinds of all of them; one that
-- asks for whole nodes gets all GPUs of them, named or not.
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
    asked.kinds[""], asked.count = true, number(job.min_nodes)
  end
  return asked.count > 0 and asked or nil
end

-- Return the GPU of a job that names no kind: by its constraint, or its partition, or the one for all;
-- nil and why if that is not known, or not one.
local function untyped_gpu(job, settings)
  local features = job.features or ""
  if settings.gpu_of_feature[features] then return settings.gpu_of_feature[features] end
  for word in features:gmatch("[^%s&|,*!%[%]%(%)]+") do
    if settings.gpu_of_feature[word] then
      return nil, ("--constraint=%s is more than the one word %s"):format(features, word)
    end
  end
  local found
  for partition in (job.partition or ""):gmatch("[^,]+") do
    local name = settings.gpu_of_partition[partition] or settings.default_gpu
    if found and found ~= name then return nil, "its partitions have several kinds of GPU" end
    found = name
  end
  found = found or settings.default_gpu
  if found == "" then return nil, "it does not say which kind of GPU: --gres=gpu:KIND:1" end
  return found
end

-- Return {name =, count =}; nil if the job asks for no GPU; false and why if it is not known which.
function question.find_gpu(job, settings)
  local asked = asked_gpus(job)
  if not asked then return nil end
  local kind = next(asked.kinds)
  if next(asked.kinds, kind) then return false, "it asks for several kinds of GPU" end
  local name, unknown = settings.gpu_of_type[kind]
  if not name and kind == "" then name, unknown = untyped_gpu(job, settings) end
  if not name or name == "" then
    return false, unknown or ("which GPU gpu:%s is has not been set up"):format(kind)
  end
  return { name = name, count = asked.count }
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

-- Return the body of the request. The spec goes as it was written, since Lua cannot distinguish []
-- from {}.
function question.body(spec, gpu)
  local named = ('{"name": %s, "count": %d}'):format(cjson.encode(gpu.name), gpu.count)
  return ('{"job": %s, "gpu": %s}'):format(spec, named)
end

return question
