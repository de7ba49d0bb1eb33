"""What the store does atomically, in Lua: no reader sees, and no crash leaves, half of it.

If a server dies before it answers, redis-py asks again, so each script may run twice with the same
arguments: the second time changes nothing that matters.
"""

from __future__ import annotations

#: replace an answer by the same one with advice, or record that none will come; 1 if it was
#: awaited. KEYS: job, channel. ARGV: id, worker, result or ''
ADD_ADVICE = """
local found = redis.call('HMGET', KEYS[1], 'state', 'worker', 'advice_until')
if found[1] ~= 'done' or found[2] ~= ARGV[2] or not found[3] then return 0 end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'result', ARGV[3]) end
redis.call('HDEL', KEYS[1], 'advice_until')
redis.call('PUBLISH', KEYS[2], ARGV[1])
return 1
"""

#: the server's clock in milliseconds, and which jobs have a place for runs, of whom: those whose
#: lease is gone have none any more
_COUNT_RUNS = """
local function read_clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function count_runs(running, leases)
    local total, by_caller, runs = 0, {}, {}
    local entries = redis.call('HGETALL', running)
    for place = 1, #entries, 2 do
        local id, entry = entries[place], entries[place + 1]
        if redis.call('EXISTS', leases .. id) == 0 then
            redis.call('HDEL', running, id)
        else
            local since, caller = string.match(entry, '^(%d+) (.*)$')
            total = total + 1
            by_caller[caller] = (by_caller[caller] or 0) + 1
            runs[#runs + 1] = {id = id, since = tonumber(since), caller = caller}
        end
    end
    return total, by_caller, runs
end
"""

#: take a job that no worker holds; 1 if it is ours now, or was already. The last free place for
#: runs is for callers that have none: another's job is parked, -1, see UNPARK.
#: KEYS: job, lease, running, parked. ARGV: worker, milliseconds, started_at, id, prefix of leases,
#: how many places there are (0: it takes none)
BEGIN = (
    _COUNT_RUNS
    + """
local found = redis.call('HMGET', KEYS[1], 'state', 'caller')
local state, caller, places = found[1], found[2] or '', tonumber(ARGV[6])
if not state or (state ~= 'queued' and state ~= 'running') then return 0 end
local holder = redis.call('GET', KEYS[2])
if holder then return holder == ARGV[1] and 1 or 0 end
if places > 0 then
    local total, by_caller = count_runs(KEYS[3], ARGV[5])
    if caller ~= '' and places > 1 and by_caller[caller] and total + 1 >= places then
        redis.call('LREM', KEYS[4], 0, ARGV[4])
        redis.call('RPUSH', KEYS[4], ARGV[4])
        return -1
    end
    redis.call('HSET', KEYS[3], ARGV[4], string.format('%d %s', read_clock(), caller))
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.call('HSET', KEYS[1], 'state', 'running', 'started_at', ARGV[3], 'worker', ARGV[1])
redis.call('HINCRBY', KEYS[1], 'attempts', 1)
return 1
"""
)

#: take jobs out of the parked ones that may have a place now, the first ones first; their ids.
#: KEYS: running, parked. ARGV: prefix of jobs, prefix of leases, how many places there are
UNPARK = (
    _COUNT_RUNS
    + """
local waiting = redis.call('LRANGE', KEYS[2], 0, -1)
local freed = {}
if #waiting == 0 then return freed end
local places = tonumber(ARGV[3])
local total, by_caller = count_runs(KEYS[1], ARGV[2])
for _, id in ipairs(waiting) do
    local found = redis.call('HMGET', ARGV[1] .. id, 'state', 'caller')
    local caller = found[2] or ''
    local is_open = found[1] == 'queued' or found[1] == 'running'
    if not is_open then
        redis.call('LREM', KEYS[2], 0, id)
    elseif places < 2 or total + 1 < places or (total < places and not by_caller[caller]) then
        redis.call('LREM', KEYS[2], 0, id)
        total = total + 1
        by_caller[caller] = (by_caller[caller] or 0) + 1
        freed[#freed + 1] = id
    end
end
return freed
"""
)

#: find a job that waits although its caller has no run while others have all places, and if it is
#: the one that was seen before, stop a run for it: one that only looks for advice, or else the
#: longest run of the caller that has most, unless it has just begun or was stopped too often.
#: Returns the waiting job, the stopped one if it must be queued again, and whose run it was; each
#: may be empty. KEYS: running, channel, queues. ARGV: prefix of jobs, prefix of leases, how many
#: places there are, the job seen before, how old a run must be in milliseconds, how often one
#: question may be stopped, how many tasks are looked at
MAKE_ROOM = (
    _COUNT_RUNS
    + """
local total, by_caller, runs = count_runs(KEYS[1], ARGV[2])
local places = tonumber(ARGV[3])
local nothing = {'', '', ''}
if total == 0 or total < places then return nothing end

local waiting = ''
for number = 3, #KEYS do
    for _, task in ipairs(redis.call('LRANGE', KEYS[number], 0, tonumber(ARGV[7]) - 1)) do
        local id = string.sub(task, 1, string.find(task, '-', 1, true) - 1)
        local found = redis.call('HMGET', ARGV[1] .. id, 'state', 'caller')
        if waiting == '' and found[1] == 'queued' and not by_caller[found[2] or ''] then
            waiting = id
        end
    end
end
if waiting == '' or waiting ~= ARGV[4] then return {waiting, '', ''} end

local chosen, now = nil, read_clock()
for _, run in ipairs(runs) do
    local found = redis.call('HMGET', ARGV[1] .. run.id, 'state', 'stops')
    run.is_advice = found[1] == 'done'
    local is_old = now - run.since >= tonumber(ARGV[5])
    local may_stop = run.is_advice or (found[1] == 'running' and is_old
                                       and tonumber(found[2] or 0) < tonumber(ARGV[6]))
    run.weight = (run.is_advice and 1e6 or 0) + by_caller[run.caller]
    if may_stop and (not chosen or run.weight > chosen.weight
                     or (run.weight == chosen.weight and run.since < chosen.since)) then
        chosen = run
    end
end
if not chosen then return {waiting, '', ''} end

local job = ARGV[1] .. chosen.id
redis.call('DEL', ARGV[2] .. chosen.id)
redis.call('HDEL', KEYS[1], chosen.id)
if chosen.is_advice then
    redis.call('HDEL', job, 'advice_until')
    redis.call('PUBLISH', KEYS[2], chosen.id)
    return {waiting, '', chosen.caller}
end
redis.call('HSET', job, 'state', 'queued')
redis.call('HINCRBY', job, 'attempts', -1)
redis.call('HINCRBY', job, 'stops', 1)
return {waiting, chosen.id, chosen.caller}
"""
)

#: extend a lease, even if it expired and no other worker took the job since (the server was away);
#: 0 if the job has ended, or another worker holds it. A job that is done is held while its advice
#: is looked for. KEYS: job, lease. ARGV: worker, milliseconds, advice_until
HOLD = """
local found = redis.call('HMGET', KEYS[1], 'state', 'worker', 'advice_until')
local is_advised = found[1] == 'done' and found[3]
if not (found[1] == 'running' or is_advised) or found[2] ~= ARGV[1] then return 0 end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
if is_advised then redis.call('HSET', KEYS[1], 'advice_until', ARGV[3]) end
return 1
"""

#: give a job back, ended or not, if it is ours. KEYS: job, lease, running. ARGV: worker, id
RELEASE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[3], ARGV[2])
if redis.call('HGET', KEYS[1], 'state') == 'running' then
    redis.call('HSET', KEYS[1], 'state', 'queued')
end
return 1
"""

#: drop expired jobs from the index, and the oldest that have ended if there are too many; a few at
#: a time. KEYS: jobs, open. ARGV: most, prefix of jobs
FORGET = """
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[1])
local oldest = redis.call('ZRANGE', KEYS[1], 0, math.min(math.max(excess, 0), 90) + 9)
for _, id in ipairs(oldest) do
    local is_gone = redis.call('EXISTS', ARGV[2] .. id) == 0
    if is_gone or (excess > 0 and not redis.call('ZSCORE', KEYS[2], id)) then
        redis.call('DEL', ARGV[2] .. id)
        redis.call('ZREM', KEYS[1], id)
        excess = excess - 1
    end
end
"""

#: keep bytes in a cache of bounded size: the least recently used are dropped.
#: KEYS: index, sizes, total. ARGV: name, bytes, timestamp, ttl, most, prefix
CACHE = """
local before = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or 0)
redis.call('SET', ARGV[6] .. ARGV[1], ARGV[2], 'EX', ARGV[4])
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], #ARGV[2])
local total = redis.call('INCRBY', KEYS[3], #ARGV[2] - before)
while total > tonumber(ARGV[5]) do
    local oldest = redis.call('ZPOPMIN', KEYS[1])[1]
    if not oldest then return end
    total = redis.call('DECRBY', KEYS[3], redis.call('HGET', KEYS[2], oldest) or 0)
    redis.call('DEL', ARGV[6] .. oldest)
    redis.call('HDEL', KEYS[2], oldest)
end
"""

#: look into that cache, and note the use. KEYS: index, sizes, total. ARGV: name, timestamp, prefix
LOOK_UP = """
local found = redis.call('GET', ARGV[3] .. ARGV[1])
if found then
    redis.call('ZADD', KEYS[1], 'XX', ARGV[2], ARGV[1])
    return found
end
local size = redis.call('HGET', KEYS[2], ARGV[1])
if size then
    redis.call('ZREM', KEYS[1], ARGV[1])
    redis.call('HDEL', KEYS[2], ARGV[1])
    redis.call('DECRBY', KEYS[3], size)
end
return false
"""

#: put a task into a list where its caller's turn is: callers take turns, however many tasks each
#: has. Each task gets a number, that of the task which is next in the list or one more than that of
#: its caller's last one, whichever is larger, and tasks wait in the order of their numbers
#: (start-time fair queueing). Tasks without a number were put there by an older version, and come
#: first. KEYS: list, numbers of tasks, last numbers of callers. ARGV: task, caller, ttl
TAKE_TURN = """
local length = redis.call('LLEN', KEYS[1])
local function number_at(place)
    local task = redis.call('LINDEX', KEYS[1], place)
    return tonumber(redis.call('HGET', KEYS[2], task) or 0)
end
if length == 0 then redis.call('DEL', KEYS[2], KEYS[3]) end
local next_number = length > 0 and number_at(0) or 0
local last_number = tonumber(redis.call('HGET', KEYS[3], ARGV[2]) or 0)
local number = math.max(next_number, last_number + 1)
redis.call('HSET', KEYS[2], ARGV[1], number)
redis.call('HSET', KEYS[3], ARGV[2], number)
for key = 2, 3 do redis.call('EXPIRE', KEYS[key], ARGV[3]) end
local low, high = 0, length
while low < high do
    local middle = math.floor((low + high) / 2)
    if number_at(middle) <= number then low = middle + 1 else high = middle end
end
if low == length then
    redis.call('RPUSH', KEYS[1], ARGV[1])
else
    redis.call('LINSERT', KEYS[1], 'BEFORE', redis.call('LINDEX', KEYS[1], low), ARGV[1])
end
if redis.call('HLEN', KEYS[2]) > 2 * length + 1000 then
    local waiting = {}
    for _, task in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do waiting[task] = true end
    for _, task in ipairs(redis.call('HKEYS', KEYS[2])) do
        if not waiting[task] then redis.call('HDEL', KEYS[2], task) end
    end
    local callers = redis.call('HGETALL', KEYS[3])
    for place = 1, #callers, 2 do
        if tonumber(callers[place + 1]) <= next_number then
            redis.call('HDEL', KEYS[3], callers[place])
        end
    end
end
return 1
"""

#: find the orphaned jobs: open, in no queue, not parked, and held by no worker. The ids in rq's
#: queues begin with the id of our job. KEYS: open, parked, queues. ARGV: prefix of leases
ORPHANED = """
local waiting = {}
for _, id in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do waiting[id] = true end
for number = 3, #KEYS do
    for _, task in ipairs(redis.call('LRANGE', KEYS[number], 0, -1)) do
        waiting[string.sub(task, 1, string.find(task, '-', 1, true) - 1)] = true
    end
end
local orphaned = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if not waiting[id] and redis.call('EXISTS', ARGV[1] .. id) == 0 then
        orphaned[#orphaned + 1] = id
    end
end
return orphaned
"""

#: become the leader for a while, or stay it; 1 if we are. KEYS: lock. ARGV: name, milliseconds
LEAD = """
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
